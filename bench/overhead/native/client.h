// The options of a run, its connections and the requests on them; what comes back is counted here.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "measure.h"
#include "text.h"

static char HOST[64] = "127.0.0.1";
static int PORT = 30000;
static const char* PATH = "/v1/chat/completions";
static int CONNS = 64, SIZE = 300, CHUNKS = 200, SESSIONS = 64, TURNS = 30, START_KB = 20, END_KB = 800, RAMP_MS = 1500,
           SYSTEM_KB = 12, STAGGERED = 0;
static double SECONDS = 8, RATE = 0, WARM_S = 1, TIMEOUT_S = 60;
static u64 SEED = 1;
enum { SMALL, AGENT, STREAM };
static int MODE;
typedef struct {
    int fd, id, wants_write, busy, ready;
    u64 start_at;  // when its first request is due
    // the request
    char head[1024];
    size_t head_len;
    Text body;
    const char* tail;
    size_t tail_len, body_size, sent, total;
    u64 sent_at;
    int session, turn, last_worker;
    // the reply
    int head_done, status, chunked, chunk_state, close_after;
    long content_len, got, chunk_left;
    char reply_head[8192];
    size_t reply_head_len;
    char reply_start[1024];
    size_t reply_start_len;
    int stamp_state, stamp_digits, chunks;
    u64 stamp, last_chunk_at;
} Connection;
static Connection* connections;
static int epoll;
static Values latencies, latencies_by_size[3], gaps, transits;
static u64 errors, errors_by_class[6], done, chunks, short_streams, bytes_sent, sticky, later_turns, reconnects;
static int measuring, stopping;
static int next_sid;
static Text prefix, tools;
static u64 worker_counts[65536];
static u64 started_at, measure_from, measure_to;
static int live;

static void want_write(Connection* c, int w) {
    if (c->wants_write == w || c->fd < 0)
        return;
    c->wants_write = w;
    struct epoll_event e = {.events = EPOLLIN | (w ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void open_connection(Connection* c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, HOST, &a.sin_addr);
    connect(c->fd, (void*)&a, sizeof a);
    c->wants_write = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

static void reset_reply(Connection* c) {
    c->head_done = 0;
    c->status = 0;
    c->chunked = 0;
    c->chunk_state = 0;
    c->content_len = -1;
    c->got = 0;
    c->chunk_left = 0;
    c->reply_head_len = 0;
    c->reply_start_len = 0;
    c->close_after = 0;
    c->stamp_state = 0;
    c->chunks = 0;
}

static void reconnect(Connection* c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->wants_write = 0;
    reconnects++;
}

static void finish_request(Connection* c, int ok);

static void write_request(Connection* c) {
    while (c->sent < c->total) {
        struct iovec v[3];
        int n = 0;
        size_t o = c->sent;
        const char* p[3] = {c->head, c->body.b, c->tail};
        size_t l[3] = {c->head_len, c->body.n, c->tail_len};
        for (int i = 0; i < 3; i++) {
            if (o >= l[i]) {
                o -= l[i];
                continue;
            }
            v[n].iov_base = (char*)p[i] + o;
            v[n].iov_len = l[i] - o;
            o = 0;
            n++;
        }
        ssize_t r = writev(c->fd, v, n);
        if (r < 0) {
            if (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS) {
                want_write(c, 1);
                return;
            }
            finish_request(c, 0);
            return;
        }
        c->sent += r;
    }
    want_write(c, 0);
}

static void begin_session(Connection* c) {
    c->session = next_sid++;
    c->turn = 0;
    c->last_worker = -1;
    c->body.n = 0;
    reserve(&c->body, prefix.n + 4096);
    memcpy(c->body.b, prefix.b, prefix.n);
    c->body.n = prefix.n;
}

static void add_turn(Connection* c) {
    random_state = SEED * 0x9E3779B97F4A7C15ull + (u64)c->session * 1000003 + c->turn * 7919 + 12345;
    for (int i = 0; i < 4; i++)
        next_random();
    char t[256];
    if (c->turn == 0) {
        snprintf(t, sizeof t, ",{\"role\":\"user\",\"content\":\"Session %d task: ", c->session);
        append(&c->body, t);
        long k = (long)START_KB * 1024 - (long)c->body.n - (long)tools.n;
        append_words(&c->body, k > 64 ? k : 64);
        append(&c->body, "\"}");
    } else {
        size_t inc = (size_t)(END_KB - START_KB) * 1024 / (TURNS - 1);
        size_t e = c->body.n + inc;
        int k = 0;
        while (c->body.n + 600 < e) {
            size_t rem = e - c->body.n - 500;
            size_t seg = rem < 9000 ? rem : 4000 + next_random() % 4000;
            snprintf(t, sizeof t,
                     ",{\"role\":\"assistant\",\"content\":\"Let me look at file "
                     "%d.\",\"tool_calls\":[{\"id\":\"call_%d_%d_%d\",\"type\":\"function\",\"function\":{\"name\":\"read_"
                     "file\",\"arguments\":\"{\\\"path\\\": \\\"src/mod_%d.py\\\"}\"}}]}",
                     k, c->session, c->turn, k, (int)(next_random() % 1000));
            append(&c->body, t);
            snprintf(t, sizeof t, ",{\"role\":\"tool\",\"tool_call_id\":\"call_%d_%d_%d\",\"content\":\"", c->session, c->turn,
                     k);
            append(&c->body, t);
            append_words(&c->body, seg);
            append(&c->body, "\"}");
            k++;
        }
    }
}

static void send_request(Connection* c) {
    reset_reply(c);
    if (c->fd < 0)
        open_connection(c);
    c->busy = 1;
    c->ready = 0;
    c->sent = 0;
    if (MODE == AGENT) {
        add_turn(c);
        c->tail = tools.b;
        c->tail_len = tools.n;
    }
    c->body_size = c->body.n + c->tail_len;
    c->head_len = snprintf(
        c->head, sizeof c->head,
        "POST %s HTTP/1.1\r\nhost: %s:%d\r\naccept: application/json\r\ncontent-type: application/json\r\nauthorization: "
        "Bearer sk-bench\r\nuser-agent: OpenAI/Python 1.99.1\r\ncontent-length: %zu\r\n\r\n",
        PATH, HOST, PORT, c->body_size);
    c->total = c->head_len + c->body_size;
    bytes_sent += c->total;
    c->sent_at = now_us();
    c->last_chunk_at = 0;
    write_request(c);
}

static Connection** ready;
static int ready_head, ready_count;  // ready queue (paced mode)

static void make_ready(Connection* c) {
    c->busy = 0;
    c->ready = 1;
    ready[(ready_head + ready_count++) % CONNS] = c;
}

static void next_request(Connection* c) {
    c->busy = 0;
    u64 t = now_us();
    if (stopping || t >= measure_to) {
        live--;
        return;
    }
    if (MODE == AGENT) {
        if (c->turn >= TURNS) {
            if (next_sid >= SESSIONS) {
                live--;
                return;
            }
            begin_session(c);
        }
    }
    if (RATE > 0 && MODE != STREAM)
        make_ready(c);
    else
        send_request(c);
}

static void finish_request(Connection* c, int ok) {
    u64 t = now_us();
    u64 l = t - c->sent_at;
    if (!c->busy)
        return;
    c->busy = 0;
    if (ok && c->status == 200) {
        if (measuring) {
            done++;
            record(&latencies, l);
            if (MODE == AGENT) {
                int k = c->body_size < 100 * 1024 ? 0 : c->body_size < 300 * 1024 ? 1 : 2;
                record(&latencies_by_size[k], l);
            }
        }
        if (MODE == AGENT) {
            c->reply_start[c->reply_start_len] = 0;
            char* p = strstr(c->reply_start, "chatcmpl-w");
            if (p) {
                int w = atoi(p + 10);
                if (w > 0 && w < 65536) {
                    worker_counts[w]++;
                    if (c->last_worker >= 0) {
                        later_turns++;
                        if (c->last_worker == w)
                            sticky++;
                    }
                    c->last_worker = w;
                }
            }
        }
        if (MODE == STREAM && c->chunks != CHUNKS)
            short_streams++;
    } else {
        errors++;
        int k = c->status / 100;
        if (ok && k > 0 && k < 6)
            errors_by_class[k]++;
        else
            errors_by_class[0]++;
        if (errors <= 3) {
            c->reply_start[c->reply_start_len] = 0;
            fprintf(stderr, "error: status %d ok=%d errno %d body: %.300s\n", c->status, ok, errno, c->reply_start);
        }
    }
    if (!ok || c->close_after)
        reconnect(c);
    c->turn++;
    if (!ok && errors > 2000 && errors > done) {
        stopping = 1;
    }
    if (!ok && c->status == 0)
        usleep(500);
    next_request(c);
}

static void take_body(Connection* c, const char* b, size_t n, u64 t) {
    c->got += n;
    if (c->reply_start_len < sizeof c->reply_start - 1) {
        size_t k = sizeof c->reply_start - 1 - c->reply_start_len;
        if (k > n)
            k = n;
        memcpy(c->reply_start + c->reply_start_len, b, k);
        c->reply_start_len += k;
    }
    if (MODE != STREAM)
        return;
    for (size_t i = 0; i < n; i++) {
        char ch = b[i];
        switch (c->stamp_state) {
            case 0: {
                const char* q = memchr(b + i, 'T', n - i);
                if (!q)
                    return;
                i = q - b;
                c->stamp_state = 1;
                break;
            }
            case 1:
                if (ch == '@') {
                    c->stamp_state = 2;
                    c->stamp_digits = 0;
                    c->stamp = 0;
                } else
                    c->stamp_state = ch == 'T';
                break;
            case 2:
                if (ch >= '0' && ch <= '9') {
                    c->stamp = c->stamp * 10 + ch - '0';
                    c->stamp_digits++;
                } else {
                    c->stamp_state = 0;
                    if (ch == '@' && c->stamp_digits == 16) {
                        c->chunks++;
                        if (measuring) {
                            chunks++;
                            record(&transits, t - c->stamp);
                            if (c->last_chunk_at)
                                record(&gaps, t - c->last_chunk_at);
                        }
                        c->last_chunk_at = t;
                    }
                }
                break;
        }
    }
}

static void on_readable(Connection* c) {
    static char b[262144];
    ssize_t r = recv(c->fd, b, sizeof b, 0);
    if (r < 0) {
        if (errno == EAGAIN)
            return;
        if (c->busy)
            finish_request(c, 0);
        else
            reconnect(c);
        return;
    }
    if (r == 0) {
        if (c->busy) {
            if (c->head_done == 1 && c->content_len < 0 && !c->chunked) {
                c->close_after = 1;
                finish_request(c, 1);
            } else
                finish_request(c, 0);
        } else
            reconnect(c);
        return;
    }
    if (!c->busy)
        return;
    u64 t = now_us();
    char* p = b;
    size_t n = r;
    while (n) {
        if (c->head_done == 0) {
            size_t k = sizeof c->reply_head - 1 - c->reply_head_len;
            if (k > n)
                k = n;
            size_t o = c->reply_head_len;
            memcpy(c->reply_head + o, p, k);
            c->reply_head_len += k;
            c->reply_head[c->reply_head_len] = 0;
            char* e = strstr(c->reply_head, "\r\n\r\n");
            if (!e) {
                if (c->reply_head_len >= sizeof c->reply_head - 1) {
                    finish_request(c, 0);
                }
                return;
            }
            size_t used = e + 4 - c->reply_head - o;
            p += used;
            n -= used;
            c->status = atoi(c->reply_head + 9);
            char* v;
            *e = 0;
            if (c->status == 100) {
                c->reply_head_len = 0;
                continue;
            }
            c->content_len = -1;
            if ((v = strcasestr(c->reply_head, "\ncontent-length:")))
                c->content_len = atol(v + 16);
            if ((v = strcasestr(c->reply_head, "\ntransfer-encoding:")))
                c->chunked = 1;
            if (strcasestr(c->reply_head, "\nconnection: close"))
                c->close_after = 1;
            c->head_done = 1;
            if (c->content_len == 0) {
                finish_request(c, 1);
                return;
            }
            continue;
        }
        if (!c->chunked) {
            size_t k = n;
            if (c->content_len >= 0 && (long)k > c->content_len - c->got)
                k = c->content_len - c->got;
            take_body(c, p, k, t);
            p += k;
            n -= k;
            if (c->content_len >= 0 && c->got >= c->content_len) {
                finish_request(c, 1);
                return;
            }
            continue;
        }
        switch (c->chunk_state) {
            case 0:
                while (n) {
                    char ch = *p++;
                    n--;
                    if (ch == '\n') {
                        c->chunk_state = c->chunk_left ? 1 : 4;
                        break;
                    }
                    if (isxdigit(ch)) {
                        c->chunk_left = c->chunk_left * 16 + (ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10);
                    }
                }
                break;
            case 1: {
                size_t k = n < (size_t)c->chunk_left ? n : (size_t)c->chunk_left;
                take_body(c, p, k, t);
                p += k;
                n -= k;
                c->chunk_left -= k;
                if (!c->chunk_left)
                    c->chunk_state = 2;
                break;
            }
            case 2:
                while (n) {
                    char ch = *p++;
                    n--;
                    if (ch == '\n') {
                        c->chunk_state = 0;
                        c->chunk_left = 0;
                        break;
                    }
                }
                break;
            case 4:
                while (n) {
                    char ch = *p++;
                    n--;
                    if (ch == '\n') {
                        finish_request(c, 1);
                        return;
                    }
                }
                break;
        }
    }
}
