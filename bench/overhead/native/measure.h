// What a run keeps of latencies, and what /proc says of the router's process tree and of the two cores.
#pragma once
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;

static u64 now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

typedef struct {
    u32* v;
    size_t n, cap;
} Values;

static void record(Values* a, u64 x) {
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 65536;
        a->v = realloc(a->v, a->cap * 4);
    }
    a->v[a->n++] = x > 0xffffffffu ? 0xffffffffu : (u32)x;
}

static int compare(const void* a, const void* b) {
    u32 x = *(u32*)a, y = *(u32*)b;
    return x < y ? -1 : x > y;
}

static double percentile(Values* a, double p) {
    if (!a->n)
        return -1;
    size_t i = (size_t)(p * (a->n - 1) + 0.5);
    return a->v[i];
}

static void sort_values(Values* a) {
    qsort(a->v, a->n, 4, compare);
}

static int ROUTER_PID = 0, WORKERS_PID = 0;

static int read_process(int pid, u64* ticks, u64* rss) {
    char f[64], b[1024];
    snprintf(f, sizeof f, "/proc/%d/stat", pid);
    int fd = open(f, O_RDONLY);
    if (fd < 0)
        return -1;
    int n = read(fd, b, sizeof b - 1);
    close(fd);
    if (n <= 0)
        return -1;
    b[n] = 0;
    char* p = strrchr(b, ')');
    if (!p)
        return -1;
    int pp;
    unsigned long ut, st;
    long pages;
    char s;
    if (sscanf(p + 2, "%c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld", &s, &pp, &ut,
               &st, &pages) != 5)
        return -1;
    *ticks = ut + st;
    *rss = pages * 4;
    return pp;
}

static void router_use(u64* ticks, u64* rss) {
    *ticks = *rss = 0;
    if (!ROUTER_PID)
        return;
    static int pid[65536], pp[65536];
    static u64 tk[65536], kb[65536];
    static char in[65536];
    int n = 0;
    DIR* d = opendir("/proc");
    struct dirent* e;
    while ((e = readdir(d)) && n < 65536)
        if (isdigit(e->d_name[0])) {
            pid[n] = atoi(e->d_name);
            pp[n] = read_process(pid[n], &tk[n], &kb[n]);
            if (pp[n] >= 0) {
                in[n] = pid[n] == ROUTER_PID;
                n++;
            }
        }
    closedir(d);
    for (int ch = 1; ch;) {
        ch = 0;
        for (int i = 0; i < n; i++)
            if (!in[i])
                for (int j = 0; j < n; j++)
                    if (in[j] && pp[i] == pid[j]) {
                        in[i] = 1;
                        ch = 1;
                        break;
                    }
    }
    for (int i = 0; i < n; i++)
        if (in[i]) {
            *ticks += tk[i];
            *rss += kb[i];
        }
}

static u64 worker_ticks(void) {
    u64 a = 0, b;
    if (WORKERS_PID)
        read_process(WORKERS_PID, &a, &b);
    return a;
}

static void core_ticks(u64* busy, u64* tot) {
    FILE* f = fopen("/proc/stat", "r");
    char l[512];
    busy[0] = busy[1] = tot[0] = tot[1] = 0;
    while (fgets(l, sizeof l, f)) {
        int c;
        u64 a[8];
        if (sscanf(l, "cpu%d %lu %lu %lu %lu %lu %lu %lu %lu", &c, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7]) ==
                9 &&
            c < 2) {
            for (int i = 0; i < 8; i++)
                tot[c] += a[i];
            busy[c] = tot[c] - a[3] - a[4];
        }
    }
    fclose(f);
}
