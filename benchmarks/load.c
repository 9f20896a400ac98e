// Asks a router from many connections, and measures what comes back.
//
//     load PORT CONNECTIONS WARM_MS RUN_MS RATE EVENTS BODIES [HEADER]
//
// RATE 0: every connection asks again as soon as it is answered. Otherwise RATE requests a second
// begin at their times, however long answers take; latency then counts from the due time. An answer
// is good if its status is 200 and it has EVENTS events and a last one (EVENTS 0: it is no stream).
// BODIES holds one JSON body a line, HEADER is sent with each.
//
// Prints "begin" when the warm-up ends, then what was answered since, as one line of JSON. Times
// are microseconds.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "wire.h"

enum { STEPS = 64, BUCKETS = 40 * STEPS, IN_A_ROW = 1000 };

struct times {
    uint64_t count, most, bucket[BUCKETS];
};

struct request {
    char *bytes;
    size_t len;
};

struct conn {
    int fd, busy, fresh, blocked;  // fresh: nothing was answered on it yet
    const struct request *request;
    size_t sent;
    struct wire in;
    uint64_t began, event_at;  // event_at 0: no event yet
    struct conn *next;
};

static int poller, timer;
static struct sockaddr_in router = {.sin_family = AF_INET};
static struct request *requests;
static size_t request_count, next_request;
static uint32_t events;
static uint64_t from, until;  // what is measured
static struct times latency, first_event, gaps;
static uint64_t good, failed, seen_events, reopened, failed_in_a_row;
static struct conn *idle;

static void add(struct times *t, uint64_t us, uint64_t at) {
    if (at < from || at >= until) return;
    size_t i = us;
    if (us >= STEPS) {
        int power = 63 - __builtin_clzll(us);
        i = (power - 5) * STEPS + (us >> (power - 6)) - STEPS;
    }
    t->bucket[i < BUCKETS ? i : BUCKETS - 1]++;
    t->count++;
    if (us > t->most) t->most = us;
}

static uint64_t quantile(const struct times *t, double share) {
    uint64_t seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += t->bucket[i];
        if (seen && seen >= share * t->count)
            return i < STEPS ? i : (i % STEPS + STEPS) << (i / STEPS - 1);
    }
    return 0;
}

static void print_times(const char *name, const struct times *t) {
    printf(", \"%s\": {\"p50\": %lu, \"p99\": %lu, \"most\": %lu}", name, quantile(t, 0.5),
           quantile(t, 0.99), t->most);
}

static void watch(struct conn *c, int blocked) {
    if (c->blocked == blocked) return;
    struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
    c->blocked = blocked;
}

static void open_conn(struct conn *c) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) fail("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (void *)&router, sizeof router) && errno != EINPROGRESS) fail("connect");
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
    c->blocked = c->fresh = 1;
}

static void close_conn(struct conn *c) {
    close(c->fd);
    c->fd = -1;
}

// Errors show when it is read from.
static void send_rest(struct conn *c) {
    while (c->sent < c->request->len) {
        ssize_t n =
            send(c->fd, c->request->bytes + c->sent, c->request->len - c->sent, MSG_NOSIGNAL);
        if (n < 0) return watch(c, errno == EAGAIN || errno == ENOTCONN);
        c->sent += n;
    }
    watch(c, 0);
}

static void ask(struct conn *c, uint64_t due) {
    c->busy = 1;
    c->request = &requests[next_request++ % request_count];
    c->sent = 0;
    c->began = due;
    c->event_at = 0;
    wire_begin(&c->in);
    if (c->fd < 0)
        open_conn(c);
    else
        send_rest(c);
}

static void rest(struct conn *c) {
    c->busy = 0;
    c->next = idle;
    idle = c;
}

static void lost(struct conn *c) {
    // One that the router closed while the request was on its way: as clients do, ask again.
    int again = !c->fresh && c->in.head_len == 0;
    close_conn(c);
    if (!c->busy) return;
    if (again) {
        reopened++;
        c->sent = 0;
        return open_conn(c);
    }
    uint64_t now = now_us();
    failed += now >= from && now < until;
    if (++failed_in_a_row == IN_A_ROW) {
        fprintf(stderr, "load: %d requests in a row were not answered\n", IN_A_ROW);
        exit(1);
    }
    rest(c);
}

static void answered(struct conn *c, uint64_t now) {
    int right = atoi(c->in.head + 9) == 200 && c->in.events == (events ? events + 1 : 0);
    if (right) {
        add(&latency, now - c->began, now);
        failed_in_a_row = 0;
    }
    if (now >= from && now < until) *(right ? &good : &failed) += 1;
    c->fresh = 0;
    if (c->in.close) close_conn(c);
    rest(c);
}

static void receive(struct conn *c) {
    static char data[1 << 18];
    ssize_t n = recv(c->fd, data, sizeof data, 0);
    if (n < 0 && errno == EAGAIN) return;
    uint64_t now = now_us();
    if (n == 0 && c->busy && c->in.state == TO_THE_END) {
        c->in.state = COMPLETE;
        return answered(c, now);
    }
    if (n <= 0 || !c->busy) return lost(c);
    uint32_t had = c->in.events;
    size_t used = wire_feed(&c->in, data, n, 1);
    if (c->in.events > had) {
        if (c->event_at)
            add(&gaps, now - c->event_at, now);
        else
            add(&first_event, now - c->began, now);
        c->event_at = now;
        if (now >= from && now < until) seen_events += c->in.events - had;
    }
    if (c->in.state == BROKEN || (c->in.state == COMPLETE && used < (size_t)n))
        lost(c);
    else if (c->in.state == COMPLETE)
        answered(c, now);
}

static void read_bodies(const char *path, int port, const char *header) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (!file) fail(path);
    while ((n = getline(&line, &room, file)) > 0) {
        if (line[n - 1] == '\n') line[--n] = 0;
        requests = realloc(requests, (request_count + 1) * sizeof *requests);
        struct request *r = &requests[request_count++];
        int len = asprintf(&r->bytes,
                           "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                           "Content-Type: application/json\r\nAccept: */*\r\n%s%s"
                           "Content-Length: %zd\r\n\r\n%s",
                           port, header, *header ? "\r\n" : "", n, line);
        if (len < 0) fail("memory");
        r->len = len;
    }
    if (!request_count) fail("no bodies");
    fclose(file);
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc < 8 || argc > 9) return fprintf(stderr, "usage: see load.c\n"), 2;
    int port = atoi(argv[1]), connections = atoi(argv[2]);
    uint64_t warm_us = atoll(argv[3]) * 1000, run_us = atoll(argv[4]) * 1000;
    double rate = atof(argv[5]), cpu_before = 0;
    events = atoi(argv[6]);
    read_bodies(argv[7], port, argc == 9 ? argv[8] : "");
    router.sin_port = htons(port);
    router.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &e);
    struct conn *conns = calloc(connections, sizeof *conns);
    uint64_t begun = 0, scheduled = 0, start = now_us();
    from = start + warm_us;
    until = from + run_us;
    for (int i = connections; i--;) {
        conns[i].fd = -1;
        if (rate) rest(&conns[i]);
    }
    static struct epoll_event ready[512];
    for (uint64_t now, told = 0; (now = now_us()) < until;) {
        if (!told && now >= from) {
            told = 1;
            cpu_before = cpu_s();
            puts("begin");
            fflush(stdout);
        }
        // The first requests are spread over half the warm-up, so that streams do not keep step.
        while (!rate && begun < (uint64_t)connections &&
               now >= start + warm_us / 2 * begun / connections)
            ask(&conns[begun++], now);
        for (uint64_t due; idle && (!rate || (due = start + scheduled * 1e6 / rate) <= now);) {
            struct conn *c = idle;
            idle = c->next;
            ask(c, rate ? due : now);
            scheduled++;
        }
        if (rate && idle) {
            uint64_t due = start + scheduled * 1e6 / rate;
            struct itimerspec at = {.it_value = {due / 1000000, due % 1000000 * 1000}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        }
        int n = epoll_wait(poller, ready, 512, begun < (uint64_t)connections && !rate ? 1 : 10);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!c) {
                uint64_t times;
                if (read(timer, &times, sizeof times) < 0) continue;
            } else if (ready[i].events & ~EPOLLOUT) {
                receive(c);
            } else if (c->busy) {
                send_rest(c);
            } else {
                watch(c, 0);
            }
        }
    }
    printf("{\"good\": %lu, \"failed\": %lu, \"events\": %lu, \"reopened\": %lu, \"cpu_s\": %.3f",
           good, failed, seen_events, reopened, cpu_s() - cpu_before);
    print_times("latency_us", &latency);
    print_times("first_event_us", &first_event);
    print_times("gap_us", &gaps);
    puts("}");
    return 0;
}
