// What the programs of this folder share: a clock, big-endian numbers, `key=value` arguments, loopback sockets.
#ifndef HOLDFAST_BENCH_H
#define HOLDFAST_BENCH_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline double cpu_seconds(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_stime.tv_sec + 1e-6 * (r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static inline void put_u32(void *to, uint32_t v) {
  v = htonl(v);
  memcpy(to, &v, 4);
}

static inline uint32_t get_u32(const void *from) {
  uint32_t v;
  memcpy(&v, from, 4);
  return ntohl(v);
}

static inline void put_u64(void *to, uint64_t v) {
  put_u32(to, v >> 32);
  put_u32((char *)to + 4, (uint32_t)v);
}

static inline uint64_t get_u64(const void *from) {
  return (uint64_t)get_u32(from) << 32 | get_u32((const char *)from + 4);
}

static inline _Noreturn void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static inline void *take(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (!memory) die("out of memory");
  return memory;
}

// The value of `key=` among the arguments, or `otherwise`.
static inline const char *text_option(int argc, char **argv, const char *key, const char *otherwise) {
  size_t n = strlen(key);
  for (int i = 1; i < argc; i++)
    if (!strncmp(argv[i], key, n) && argv[i][n] == '=') return argv[i] + n + 1;
  return otherwise;
}

static inline double number_option(int argc, char **argv, const char *key, double otherwise) {
  const char *text = text_option(argc, argv, key, NULL);
  return text ? atof(text) : otherwise;
}

static inline struct sockaddr_in loopback(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

static inline void no_delay(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline void non_blocking(int fd) {
  if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0) die("fcntl");
}

#endif
