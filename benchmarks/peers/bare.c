/* bare PORT LOAD OUT REST_US CONNECTIONS: send on time, look every REST_US microseconds, read each connection that has something once,
 * count tokens and throw all away. LOAD: u32 count; of each request i64 ns after the start, u32 length, bytes. OUT: a line of tokens each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LEAD_NS 200000000LL
#define LOOK 256

static const char EVENT[] = "\"choices\":[{"; /* of an event with a token; the usage behind the last one has no choices */
static const char END[] = "0\r\n\r\n";        /* what a chunked answer ends with, and nothing inside an event of the truth server */

static void fail(const char *what) {
    fprintf(stderr, "bare: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void *need(void *memory) {
    if (!memory) fail("memory");
    return memory;
}

static void take(void *into, size_t size, FILE *file) {
    errno = 0;
    if (fread(into, 1, size, file) != size) fail("load file");
}

static int connected(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fcntl(fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
    return fd;
}

static long events(const char *data, size_t size) {
    long found = 0;
    const char *end = data + size, *at = data;
    while ((at = memmem(at, end - at, EVENT, sizeof EVENT - 1))) found++, at += sizeof EVENT - 1;
    return found;
}

int main(int count, char **words) {
    if (count != 6) fail("usage: bare PORT LOAD OUT REST_US CONNECTIONS");
    int64_t rest = atoll(words[4]) * 1000;
    int connections = atoi(words[5]), idle = 0, queue = epoll_create1(0), most = 0;
    uint32_t requests, sent = 0, ended = 0;
    FILE *file = need(fopen(words[2], "rb"));
    take(&requests, sizeof requests, file);
    int64_t *due = need(calloc(requests, sizeof *due));
    uint32_t *size = need(calloc(requests, sizeof *size));
    long *tokens = need(calloc(requests, sizeof *tokens));
    char **body = need(calloc(requests, sizeof *body));
    for (uint32_t i = 0; i < requests; i++) {
        take(&due[i], sizeof due[i], file);
        take(&size[i], sizeof size[i], file);
        take(body[i] = need(malloc(size[i])), size[i], file);
    }
    int *ready = need(calloc(connections, sizeof *ready));
    for (int i = 0; i < connections; i++) {
        int fd = ready[idle++] = connected(atoi(words[1]));
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(queue, EPOLL_CTL_ADD, fd, &wanted)) fail("epoll");
        most = fd > most ? fd : most;
    }
    uint32_t *serves = need(calloc(most + 1, sizeof *serves));
    static char data[65536];
    int64_t epoch = now_ns() + LEAD_NS;
    while (ended < requests) {
        for (; sent < requests && epoch + due[sent] <= now_ns(); sent++) {
            if (!idle) fail("more at a time than connections");
            int fd = ready[--idle];
            serves[fd] = sent;
            if (send(fd, body[sent], size[sent], MSG_NOSIGNAL) != (ssize_t)size[sent]) fail("send");
        }
        struct epoll_event came[LOOK];
        int found = epoll_wait(queue, came, LOOK, 0);
        for (int i = 0; i < found; i++) {
            int fd = came[i].data.fd;
            ssize_t got = recv(fd, data, sizeof data, 0);
            if (got == 0) errno = 0; /* closed, which is no error of a call */
            if (got <= 0) fail("recv");
            tokens[serves[fd]] += events(data, got);
            if (got >= 5 && !memcmp(data + got - 5, END, 5)) ready[idle++] = fd, ended++;
        }
        int64_t at = now_ns(), wait = sent < requests && epoch + due[sent] - at < rest ? epoch + due[sent] - at : rest;
        struct timespec pause = {wait / 1000000000, wait % 1000000000};
        if (wait > 0) nanosleep(&pause, NULL);
    }
    FILE *out = need(fopen(words[3], "w"));
    for (uint32_t i = 0; i < requests; i++) fprintf(out, "%ld\n", tokens[i]);
    if (fclose(out)) fail("out");
    return 0;
}
