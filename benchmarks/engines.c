// Many engines in one process, for measuring routers: each listens on a port of its own and answers
// as vLLM does, without a model.
//
//     engines COUNT
//
// Prints the ports in one line, then obeys lines on stdin and answers each with one line:
//     answer EVENTS GAP_US BYTES   from now on POST is answered with BYTES of JSON (EVENTS 0), or
//                                  with a stream of EVENTS events, GAP_US apart; all streams of
//                                  an engine get theirs at the same time, engines take turns
//     count                        POSTs so far; engines that were POSTed to; engines that were
//                                  asked anything with GET; all those questions
//     zero                         count anew
// Ends when stdin does.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

struct piece {
    char *bytes;
    size_t len;
};

struct engine {
    int listener;
    uint64_t posts, gets;
};

struct conn {
    int fd, blocked;
    struct engine *engine;
    struct wire in;
    const struct piece *piece;  // what is sent now; NULL: the other side is to speak
    size_t sent;
    uint32_t events_left;
    uint64_t due_us;              // of the next event, while it waits in the queue
    struct conn *before, *after;  // in the queue
};

static int poller;
static uint32_t events;
static uint64_t gap_us;
static struct piece plain, stream_head, event, stream_end;
static struct piece healthy, metrics, models, about, unknown;
static struct engine *engines;
static int engine_count;
static struct conn *first, *last;  // those that wait, by when they are due

static struct piece answer(const char *status, const char *type, const char *body) {
    struct piece p;
    int n = asprintf(&p.bytes,
                     "HTTP/1.1 %s\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                     "content-length: %zu\r\ncontent-type: %s\r\n\r\n%s",
                     status, strlen(body), type, body);
    if (n < 0) fail("memory");
    p.len = n;
    return p;
}

static void set_reply(int bytes) {
    char *body;
    int n = asprintf(
        &body,
        "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
        "\"created\":1767225600,\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
        "\"assistant\",\"content\":\"%0*d\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":200,"
        "\"total_tokens\":264,\"completion_tokens\":64},\"prompt_logprobs\":null}",
        bytes > 400 ? bytes - 360 : 40, 0);
    if (n < 0) fail("memory");
    free(plain.bytes);
    plain = answer("200 OK", "application/json", body);
    free(body);
}

static void write_answers(void) {
    static char head[] =
        "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    static const char data[] =
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":"
        "\"chat.completion.chunk\",\"created\":1767225600,\"model\":\"bench\",\"choices\":[{\"index\":"
        "0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    static char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    stream_head = (struct piece){head, sizeof head - 1};
    stream_end = (struct piece){end, sizeof end - 1};
    int n = asprintf(&event.bytes, "%zx\r\n%s\r\n", sizeof data - 1, data);
    if (n < 0) fail("memory");
    event.len = n;
    set_reply(1024);
    healthy = answer("200 OK", "application/json", "");
    unknown = answer("404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
    models = answer("200 OK", "application/json",
                    "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":"
                    "1767225600,\"owned_by\":\"vllm\",\"root\":\"bench\",\"max_model_len\":131072}]}");
    // What vLLM and SGLang say of themselves; no path, or routers look for its tokenizer on the net.
    about = answer("200 OK", "application/json",
                   "{\"version\":\"0.11.0\",\"served_model_name\":\"bench\",\"model_id\":\"bench\","
                   "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1}");
    metrics = answer(
        "200 OK", "text/plain; version=0.0.4; charset=utf-8",
        "# TYPE vllm:num_requests_running gauge\n"
        "vllm:num_requests_running{engine=\"0\",model_name=\"bench\"} 2.0\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"bench\"} 0.0\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"bench\"} 0.1\n"
        "# TYPE vllm:prefix_cache_queries_total counter\n"
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"bench\"} 1000.0\n"
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"bench\"} 500.0\n");
}

static const struct piece *page(const char *path) {
    static const struct {
        const char *path;
        const struct piece *page;
    } pages[] = {
        {"/health ", &healthy},
        {"/metrics ", &metrics},
        {"/v1/models ", &models},
        {"/version ", &about},
        {"/server_info ", &about},
        {"/model_info ", &about},
    };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strncmp(path, pages[i].path, strlen(pages[i].path)) == 0) return pages[i].page;
    return &unknown;
}

// Until the engine's next step. That is the last of all steps, where the last one was just made.
static void wait_in_queue(struct conn *c) {
    uint64_t phase = gap_us * (c->engine - engines) / engine_count;
    c->due_us = (now_us() - phase) / gap_us * gap_us + gap_us + phase;
    c->before = last;
    while (c->before && c->before->due_us > c->due_us) c->before = c->before->before;
    c->after = c->before ? c->before->after : first;
    *(c->before ? &c->before->after : &first) = c;
    *(c->after ? &c->after->before : &last) = c;
}

static void leave_queue(struct conn *c) {
    if (!c->due_us) return;
    *(c->before ? &c->before->after : &first) = c->after;
    *(c->after ? &c->after->before : &last) = c->before;
    c->due_us = 0;
}

static void end_conn(struct conn *c) {
    leave_queue(c);
    close(c->fd);
    free(c);
}

static void watch(struct conn *c, int blocked) {
    if (c->blocked == blocked) return;
    struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
    c->blocked = blocked;
}

// Send until the answer is complete, the next event is not due yet, or the socket takes no more.
// Returns whether the connection lives.
static int go_on(struct conn *c) {
    while (c->piece) {
        ssize_t n = send(c->fd, c->piece->bytes + c->sent, c->piece->len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return 0;
        if (n > 0) c->sent += n;
        if (c->sent < c->piece->len) {
            watch(c, 1);
            return 1;
        }
        const struct piece *was = c->piece;
        c->sent = 0;
        if (was == &stream_head || was == &event)
            c->piece = c->events_left-- ? &event : &stream_end;
        else
            c->piece = NULL;
        if (was == &event && c->piece == &event && gap_us) {
            watch(c, 0);
            wait_in_queue(c);
            return 1;
        }
    }
    watch(c, 0);
    int lives = !c->in.close;
    wire_begin(&c->in);
    return lives;
}

static int reply(struct conn *c) {
    const char *space = strchr(c->in.head, ' ');
    if (!space) return 0;
    if (strncmp(c->in.head, "POST ", 5) == 0) {
        c->engine->posts++;
        c->events_left = events;
        c->piece = events ? &stream_head : &plain;
    } else {
        c->engine->gets++;
        c->piece = page(space + 1);
    }
    return go_on(c);
}

static int receive(struct conn *c) {
    static char data[1 << 18];
    ssize_t n = recv(c->fd, data, sizeof data, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    for (size_t at = 0; at < (size_t)n;) {
        if (c->piece) return 0;  // nobody speaks before he is answered
        at += wire_feed(&c->in, data + at, n - at, 0);
        if (c->in.state == BROKEN || (c->in.state == COMPLETE && !reply(c))) return 0;
    }
    return 1;
}

static void receive_new(struct engine *engine) {
    int fd, on = 1;
    while ((fd = accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct conn *c = calloc(1, sizeof *c);
        if (!c) fail("memory");
        c->fd = fd;
        c->engine = engine;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static void obey(void) {
    char line[128];
    int bytes;
    if (!fgets(line, sizeof line, stdin)) exit(0);
    if (sscanf(line, "answer %u %lu %d", &events, &gap_us, &bytes) == 3) {
        set_reply(bytes);
        puts("ok");
    } else if (strcmp(line, "zero\n") == 0) {
        for (int i = 0; i < engine_count; i++) engines[i].posts = engines[i].gets = 0;
        puts("ok");
    } else if (strcmp(line, "count\n") == 0) {
        uint64_t posts = 0, used = 0, asked = 0, gets = 0;
        for (int i = 0; i < engine_count; i++) {
            posts += engines[i].posts;
            gets += engines[i].gets;
            used += engines[i].posts > 0;
            asked += engines[i].gets > 0;
        }
        printf("%lu %lu %lu %lu\n", posts, used, asked, gets);
    } else {
        puts("what?");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    engine_count = argc == 2 ? atoi(argv[1]) : 0;
    if (engine_count < 1) return fprintf(stderr, "usage: engines COUNT\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    setvbuf(stdin, NULL, _IONBF, 0);  // what epoll does not see must not lie in a buffer
    write_answers();
    poller = epoll_create1(0);
    engines = calloc(engine_count, sizeof *engines);
    for (int i = 0; i < engine_count; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        int fd = engines[i].listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (void *)&at, size) || listen(fd, 4096) ||
            getsockname(fd, (void *)&at, &size))
            fail("engine");
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = 2 * i + 1};  // odd: no pointer
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e)) fail("epoll");
        printf("%d%c", ntohs(at.sin_port), i + 1 < engine_count ? ' ' : '\n');
    }
    fflush(stdout);
    struct epoll_event orders = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, 0, &orders)) fail("stdin");
    static struct epoll_event ready[512];
    for (;;) {
        int n = epoll_wait(poller, ready, 512, first ? 1 : -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (!c)
                obey();
            else if (ready[i].data.u64 & 1)
                receive_new(&engines[ready[i].data.u64 / 2]);
            else if (((ready[i].events & ~EPOLLOUT) && !receive(c)) ||
                     ((ready[i].events & EPOLLOUT) && c->blocked && !go_on(c)))
                end_conn(c);
        }
        for (uint64_t now = first ? now_us() : 0; first && first->due_us <= now;) {
            struct conn *c = first;
            leave_queue(c);
            if (!go_on(c)) end_conn(c);
        }
    }
}
