/* The load generator: sends prepared frames, counts answers, and knows nothing of Kafka.
 *
 * A frame file holds whole requests, length prefix included, one after the other; each connection
 * maps its own private copy and goes round it. The only bytes changed are the correlation id. An
 * answer is read for its length, correlation id and one error code at a given place; the rest is
 * thrown away inside the kernel (MSG_TRUNC), so that the generator costs little beside a broker.
 *
 *   load replay  PORT[,PORT...] CONNECTIONS WINDOW REQUESTS ERROR_AT LEAST PAUSE_US BYTES_PER_S FILE...
 *   load journey PORT ROUNDS PRODUCE_ERROR_AT FETCH_ERROR_AT LEAST GAP_US PRODUCE_FILE FETCH_FILE
 *
 * It says "ready" when connected, starts on a line from standard input, and ends after REQUESTS
 * (0: never, `once`: when each connection has sent its file once) or when standard input closes. The result is one line of JSON; times in microseconds.
 * Of several ports or files the connections take one each in turn, so that a file can go to the
 * node that leads its partition.
 * `journey` parks a fetch, produces the record that it waits for, and measures until it arrives.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 64, MAX_WINDOW = 64, HEAD = 96 };

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static uint32_t read_u32(const unsigned char *at) {
    uint32_t raw;
    memcpy(&raw, at, 4);
    return ntohl(raw);
}

static void write_u32(unsigned char *at, uint32_t value) {
    uint32_t raw = htonl(value);
    memcpy(at, &raw, 4);
}

/* ---- latencies ---- */

static float *samples;
static size_t sample_count, sample_room;

static void note(double us) {
    if (sample_count == sample_room) {
        sample_room = sample_room ? sample_room * 2 : 1 << 16;
        samples = realloc(samples, sample_room * sizeof *samples);
        if (!samples) fail("out of memory");
    }
    samples[sample_count++] = (float)us;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double quantile(double q) {
    return sample_count ? samples[(size_t)(q * (sample_count - 1) + 0.5)] : 0;
}

static void report(double elapsed_us, uint64_t sent, uint64_t received) {
    qsort(samples, sample_count, sizeof *samples, ascending);
    printf("{\"requests\": %zu, \"seconds\": %.6f, \"sent\": %llu, \"received\": %llu, "
           "\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}\n",
           sample_count, elapsed_us / 1e6, (unsigned long long)sent, (unsigned long long)received,
           quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999), quantile(1));
}

/* ---- frames and connections ---- */

typedef struct {
    unsigned char *data;
    size_t size, at;
} Frames;

static Frames map_frames(const char *path) {
    struct stat info;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &info) < 0) fail("%s: %s", path, strerror(errno));
    void *data = mmap(NULL, info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) fail("%s: %s", path, strerror(errno));
    close(fd);
    return (Frames){data, info.st_size, 0};
}

static uint64_t count_frames(const Frames *frames) {
    uint64_t count = 0;
    for (size_t at = 0; at < frames->size; at += read_u32(frames->data + at) + 4) count++;
    return count;
}

typedef struct {
    int fd;
    Frames frames;
    unsigned char *out; /* what is left of the frame on its way */
    size_t out_left;
    uint32_t next_id, expected_id;
    double begun[MAX_WINDOW]; /* start of each request in flight, by its id */
    unsigned char head[HEAD];
    size_t head_have, head_want, body_left;
    double ready_at; /* no new request before this time */
} Connection;

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void next_frame(Connection *c) {
    if (c->frames.at >= c->frames.size) c->frames.at = 0;
    c->out = c->frames.data + c->frames.at;
    c->out_left = read_u32(c->out) + 4;
    c->frames.at += c->out_left;
    write_u32(c->out + 8, c->next_id);
}

/* Sends what the socket takes; the number of bytes. */
static size_t push(Connection *c) {
    ssize_t n = send(c->fd, c->out, c->out_left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return 0;
        fail("send: %s", strerror(errno));
    }
    c->out += n;
    c->out_left -= n;
    return n;
}

/* Reads on; 1 when an answer is complete. The head is kept, the body thrown away. */
static int pull(Connection *c, int wait, int error_at, size_t least, uint64_t *received) {
    int flags = wait ? 0 : MSG_DONTWAIT;
    for (;;) {
        ssize_t n;
        if (c->head_have < c->head_want) {
            n = recv(c->fd, c->head + c->head_have, c->head_want - c->head_have, flags);
        } else {
            n = recv(c->fd, NULL, c->body_left, MSG_TRUNC | flags);
        }
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (n < 0) fail("recv: %s", strerror(errno));
        if (n == 0) fail("the broker closed the connection");
        *received += n;
        if (c->head_have < c->head_want) {
            c->head_have += n;
            if (c->head_have == 4) {
                size_t size = read_u32(c->head);
                if (size < least) fail("an answer of %zu bytes, expected %zu", size, least);
                c->head_want = 4 + (size < HEAD - 4 ? size : HEAD - 4);
                c->body_left = size + 4 - c->head_want;
            }
        } else {
            c->body_left -= n;
        }
        if (c->head_have == c->head_want && c->head_want > 4 && c->body_left == 0) break;
    }
    if (read_u32(c->head + 4) != c->expected_id) fail("answers out of order");
    if (error_at >= 0) {
        int code = (int16_t)(c->head[4 + error_at] << 8 | c->head[5 + error_at]);
        if (code) fail("error code %d", code);
    }
    c->expected_id++;
    c->head_have = 0;
    c->head_want = 4;
    return 1;
}

static void await_go(void) {
    char line[16];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

/* ---- the two kinds of load ---- */

static void replay(int argc, char **argv) {
    if (argc < 11) fail("replay: too few arguments");
    int connections = atoi(argv[3]), window = atoi(argv[4]);
    const char *port = argv[2];
    uint64_t requests = strtoull(argv[5], NULL, 10);
    int once = !strcmp(argv[5], "once");
    int error_at = atoi(argv[6]);
    size_t least = strtoull(argv[7], NULL, 10);
    double pause_us = atof(argv[8]), rate = atof(argv[9]);
    static Connection all[MAX_CONNECTIONS];
    struct pollfd ready[MAX_CONNECTIONS + 1];
    uint64_t begun = 0, done = 0, sent = 0, received = 0;
    if (connections > MAX_CONNECTIONS || window > MAX_WINDOW) fail("too many at once");
    for (int i = 0; i < connections; i++) {
        all[i] = (Connection){.fd = dial(atoi(port)), .head_want = 4};
        port = strchr(port, ',') ? strchr(port, ',') + 1 : argv[2];
        all[i].frames = map_frames(argv[10 + i % (argc - 10)]);
        if (once) requests += count_frames(&all[i].frames);
        ready[i] = (struct pollfd){.fd = all[i].fd};
    }
    ready[connections] = (struct pollfd){.fd = 0, .events = POLLIN};
    await_go();
    double start = now_us(), end = start;
    int stopping = 0;
    while ((!requests || done < requests) && !(stopping && done == begun)) {
        double now = now_us(), wake = now + 1e6;
        int at_work = 0;
        for (int i = 0; i < connections; i++) {
            Connection *c = &all[i];
            for (;;) {
                if (c->out_left == 0) {
                    double due = rate > 0 ? start + sent / rate * 1e6 : 0;
                    if (c->ready_at > due) due = c->ready_at;
                    int more = !stopping && (!requests || begun < requests);
                    if (once && c->frames.at >= c->frames.size) more = 0;
                    if (!more || c->next_id - c->expected_id >= (uint32_t)window) break;
                    if (due > now) {
                        if (due < wake) wake = due;
                        break;
                    }
                    next_frame(c);
                    c->begun[c->next_id++ % MAX_WINDOW] = now_us();
                    begun++;
                }
                size_t n = push(c);
                sent += n;
                if (c->out_left) break;
            }
            ready[i].events = POLLIN | (c->out_left ? POLLOUT : 0);
            at_work += c->next_id != c->expected_id;
        }
        struct timespec limit = {0, 0};
        double wait = at_work || wake > now + 1e5 ? 1e5 : wake - now;
        if (wake - now < wait) wait = wake - now;
        limit.tv_nsec = wait > 0 ? (long)(wait * 1e3) : 0;
        if (ppoll(ready, connections + 1, &limit, NULL) < 0 && errno != EINTR)
            fail("poll: %s", strerror(errno));
        for (int i = 0; i < connections; i++) {
            Connection *c = &all[i];
            if (!(ready[i].revents & (POLLIN | POLLHUP | POLLERR))) continue;
            while (c->expected_id != c->next_id && pull(c, 0, error_at, least, &received)) {
                end = now_us();
                note(end - c->begun[(c->expected_id - 1) % MAX_WINDOW]);
                c->ready_at = end + pause_us;
                done++;
            }
        }
        if (ready[connections].revents) stopping = 1;
    }
    report(end - start, sent, received);
}

static void push_whole(Connection *c) {
    next_frame(c);
    c->next_id++;
    while (c->out_left) push(c);
}

static void journey(int argc, char **argv) {
    if (argc != 10) fail("journey: wrong number of arguments");
    int port = atoi(argv[2]), produce_error = atoi(argv[4]), fetch_error = atoi(argv[5]);
    uint64_t rounds = strtoull(argv[3], NULL, 10), received = 0;
    size_t least = strtoull(argv[6], NULL, 10);
    struct timespec gap = {0, atol(argv[7]) * 1000};
    Connection producer = {.fd = dial(port), .frames = map_frames(argv[8]), .head_want = 4};
    Connection consumer = {.fd = dial(port), .frames = map_frames(argv[9]), .head_want = 4};
    await_go();
    double start = now_us();
    for (uint64_t round = 0; round < rounds; round++) {
        push_whole(&consumer);
        nanosleep(&gap, NULL);
        double begun = now_us();
        push_whole(&producer);
        while (!pull(&consumer, 1, fetch_error, least, &received)) continue;
        note(now_us() - begun);
        while (!pull(&producer, 1, produce_error, 0, &received)) continue;
    }
    report(now_us() - start, 0, received);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "replay")) {
        replay(argc, argv);
    } else if (argc > 1 && !strcmp(argv[1], "journey")) {
        journey(argc, argv);
    } else {
        fail("usage: load replay|journey ...");
    }
    return 0;
}
