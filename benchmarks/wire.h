// An HTTP/1.1 message that comes in pieces: its head is kept, its body passed over and measured.

#ifndef WIRE_H
#define WIRE_H

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEAD_MAX = 4096 };

enum wire_state {
    IN_HEAD,
    IN_FIXED,    // a body of known length
    TO_THE_END,  // a body that ends with the connection
    IN_SIZE,     // the line before a chunk
    IN_CHUNK,
    AFTER_CHUNK,
    IN_TRAILER,
    COMPLETE,
    BROKEN,
};

struct wire {
    enum wire_state state;
    uint64_t left;    // bytes of the body or the chunk that are still to come
    uint64_t body;    // bytes of the body so far
    uint32_t events;  // empty lines in the body so far: ends of server-sent events
    uint32_t head_len, line_len;
    char last;   // last byte of the body so far
    char close;  // the connection ends after this message
    char head[HEAD_MAX + 1];
};

static inline void wire_begin(struct wire *w) {
    w->state = IN_HEAD;
    w->left = w->body = 0;
    w->events = w->head_len = w->line_len = 0;
    w->last = w->close = 0;
}

// What a header says, NULL if it is not there. `name` with its colon; not for the first line.
static inline const char *wire_header(const struct wire *w, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(w->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, length) == 0) {
            line += length;
            while (*line == ' ') line++;
            return line;
        }
    }
    return NULL;
}

static inline void wire_after_head(struct wire *w, int is_answer) {
    const char *length = wire_header(w, "content-length:");
    const char *coding = wire_header(w, "transfer-encoding:");
    const char *connection = wire_header(w, "connection:");
    w->close = connection && strncasecmp(connection, "close", 5) == 0;
    if (coding && strncasecmp(coding, "chunked", 7) == 0) {
        w->state = IN_SIZE;
    } else if (length) {
        w->left = strtoull(length, NULL, 10);
        w->state = w->left ? IN_FIXED : COMPLETE;
    } else if (is_answer) {
        w->close = 1;
        w->state = TO_THE_END;
    } else {
        w->state = COMPLETE;
    }
}

static inline void wire_pass(struct wire *w, const char *data, size_t n) {
    const char *end = data + n;
    w->body += n;
    if (n && w->last == '\n' && *data == '\n') w->events++;
    for (const char *at = data; (at = memchr(at, '\n', end - at)) && ++at < end;)
        if (*at == '\n') w->events++;
    if (n) w->last = end[-1];
}

// Take the next bytes; returns how many of them belong to this message.
static inline size_t wire_feed(struct wire *w, const char *data, size_t n, int is_answer) {
    size_t at = 0;
    while (at < n && w->state < COMPLETE) {
        switch (w->state) {
        case IN_HEAD: {
            size_t take = n - at, from = w->head_len > 3 ? w->head_len - 3 : 0;
            if (take > HEAD_MAX - w->head_len) take = HEAD_MAX - w->head_len;
            memcpy(w->head + w->head_len, data + at, take);
            size_t had = w->head_len;
            w->head_len += take;
            w->head[w->head_len] = 0;
            char *end = memmem(w->head + from, w->head_len - from, "\r\n\r\n", 4);
            if (!end) {
                at += take;
                if (w->head_len == HEAD_MAX) w->state = BROKEN;
                break;
            }
            w->head_len = end + 4 - w->head;
            w->head[w->head_len] = 0;
            at += w->head_len - had;
            wire_after_head(w, is_answer);
            break;
        }
        case IN_FIXED:
        case TO_THE_END:
        case IN_CHUNK: {
            size_t take = n - at;
            if (w->state != TO_THE_END && take > w->left) take = w->left;
            wire_pass(w, data + at, take);
            at += take;
            if (w->state == TO_THE_END) break;
            w->left -= take;
            if (!w->left) w->state = w->state == IN_FIXED ? COMPLETE : AFTER_CHUNK;
            break;
        }
        case IN_SIZE: {
            char c = data[at++];
            if (c == '\n') {
                w->state = w->left ? IN_CHUNK : IN_TRAILER;
                w->line_len = 0;
            } else if (isxdigit((unsigned char)c)) {
                w->left = w->left * 16 + (isdigit((unsigned char)c) ? c - '0' : (c | 32) - 'a' + 10);
            } else if (c != '\r') {
                w->state = BROKEN;
            }
            break;
        }
        case AFTER_CHUNK:
            if (data[at++] == '\n') w->state = IN_SIZE;
            break;
        case IN_TRAILER: {
            char c = data[at++];
            if (c == '\n' && w->line_len == 0)
                w->state = COMPLETE;
            else if (c == '\n')
                w->line_len = 0;
            else if (c != '\r')
                w->line_len++;
            break;
        }
        default:
            return at;
        }
    }
    return at;
}

static inline uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

#endif
