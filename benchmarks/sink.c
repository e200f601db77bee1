// The least that can be answered to `loadgen`: it shows what the generator itself can do, and so whether it was the limit.
//
//   sink port=P [records=880] [record_size=1185]
//
// One epoll thread. A send or a batch is dropped and answered with "stored"; a pull is answered with records of the queue
// and the offset that were asked for (at most `records`, at most the count asked for); a route query with a canned route.
// Not a broker: it keeps nothing and believes everything.
#include "bench.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#define IN_SIZE (4 << 20)
#define OUT_SIZE (8 << 20)

struct connection {
  int fd;
  bool wants_write;
  unsigned char *in;
  size_t in_size;
  char *out;
  size_t out_start, out_end;
};

static int poll_fd;
static char *records;
static size_t record_size, record_count;

static const char STORED[] =
    "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueOffset\":\"0\"},"
    "\"flag\":1,\"language\":\"OTHER\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}";
static const char FOUND[] =
    "{\"code\":0,\"extFields\":{\"nextBeginOffset\":\"0\",\"minOffset\":\"0\",\"maxOffset\":\"0\"},"
    "\"flag\":1,\"language\":\"OTHER\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}";
static const char ROUTE[] =
    "{\"brokerDatas\":[{\"brokerAddrs\":{0:\"127.0.0.1:10911\"},\"brokerName\":\"broker-a\",\"cluster\":\"DefaultCluster\"}],"
    "\"filterServerTable\":{},\"queueDatas\":[{\"brokerName\":\"broker-a\",\"perm\":6,\"readQueueNums\":4,"
    "\"topicSysFlag\":0,\"writeQueueNums\":4}]}";

static long number_after(const unsigned char *header, size_t size, const char *name) {
  const char *found = memmem(header, size, name, strlen(name));
  return found ? strtol(found + strlen(name), NULL, 10) : 0;
}

static void make_records(void) {
  records = take(record_count, record_size);
  for (size_t i = 0; i < record_count; i++) {
    put_u32(records + i * record_size, (uint32_t)record_size);
    put_u32(records + i * record_size + 4, 0xDAA320A7u);
  }
}

// Stamps the canned records with a queue and offsets; returns how many were asked for.
static size_t stamp_records(const unsigned char *header, size_t size) {
  size_t count = (size_t)number_after(header, size, "\"maxMsgNums\":\"");
  size_t fit = (size_t)number_after(header, size, "\"maxMsgBytes\":\"") / record_size;
  uint32_t queue = (uint32_t)number_after(header, size, "\"queueId\":\"");
  uint64_t offset = (uint64_t)number_after(header, size, "\"queueOffset\":\"");
  count = count < fit ? count : fit;
  count = count < record_count ? count : record_count;
  for (size_t i = 0; i < count; i++) {
    put_u32(records + i * record_size + 12, queue);
    put_u64(records + i * record_size + 20, offset + i);
  }
  return count;
}

static void answer(struct connection *c, const unsigned char *header, size_t size) {
  long code = number_after(header, size, "\"code\":"), opaque = number_after(header, size, "\"opaque\":");
  const char *body = NULL;
  size_t body_size = 0;
  if (code == 11) body = records, body_size = stamp_records(header, size) * record_size;
  if (code == 105) body = ROUTE, body_size = sizeof ROUTE - 1;
  if (c->out_end + 512 + body_size > OUT_SIZE) {
    memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
    c->out_end -= c->out_start;
    c->out_start = 0;
  }
  if (c->out_end + 512 + body_size > OUT_SIZE) errno = ENOBUFS, die("more in flight than the sink keeps");
  char *to = c->out + c->out_end;
  int header_size = sprintf(to + 8, code == 11 ? FOUND : STORED, opaque);
  put_u32(to, 4 + (uint32_t)header_size + (uint32_t)body_size);
  put_u32(to + 4, (uint32_t)header_size);
  if (body_size) memcpy(to + 8 + header_size, body, body_size);
  c->out_end += 8 + (size_t)header_size + body_size;
}

static void close_connection(struct connection *c) {
  close(c->fd);
  free(c->in);
  free(c->out);
  free(c);
}

static bool receive(struct connection *c) {
  ssize_t n = recv(c->fd, c->in + c->in_size, IN_SIZE - c->in_size, 0);
  if (n < 0 && errno == EAGAIN) return true;
  if (n <= 0) return false;
  c->in_size += (size_t)n;
  size_t at = 0;
  while (c->in_size - at >= 8) {
    size_t frame_size = 4 + (size_t)get_u32(c->in + at);
    if (frame_size > IN_SIZE) return false;
    if (c->in_size - at < frame_size) break;
    answer(c, c->in + at + 8, get_u32(c->in + at + 4) & 0xFFFFFF);
    at += frame_size;
  }
  memmove(c->in, c->in + at, c->in_size - at);
  c->in_size -= at;
  return true;
}

static bool flush_out(struct connection *c) {
  while (c->out_start < c->out_end) {
    ssize_t n = write(c->fd, c->out + c->out_start, c->out_end - c->out_start);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return false;
    c->out_start += (size_t)n;
  }
  if (c->out_start == c->out_end) c->out_start = c->out_end = 0;
  bool wants = c->out_start < c->out_end;
  if (wants != c->wants_write) {
    struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
    c->wants_write = wants;
  }
  return true;
}

static void welcome(int listener) {
  int fd = accept(listener, NULL, NULL);
  if (fd < 0) return;
  struct connection *c = take(1, sizeof *c);
  c->fd = fd;
  c->in = malloc(IN_SIZE); // untouched pages cost nothing
  c->out = malloc(OUT_SIZE);
  if (!c->in || !c->out) die("out of memory");
  no_delay(fd);
  non_blocking(fd);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
}

int main(int argc, char **argv) {
  int port = (int)number_option(argc, argv, "port", 0);
  if (!port) {
    fprintf(stderr, "usage: sink port=P [records=880] [record_size=1185]\n");
    return 2;
  }
  record_count = (size_t)number_option(argc, argv, "records", 880);
  record_size = (size_t)number_option(argc, argv, "record_size", 1185);
  make_records();
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = loopback(port);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) die("listen");
  poll_fd = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
  struct epoll_event events[256];
  for (;;) {
    int n = epoll_wait(poll_fd, events, 256, -1);
    for (int i = 0; i < n; i++) {
      struct connection *c = events[i].data.ptr;
      if (!c)
        welcome(listener);
      else if (((events[i].events & ~(uint32_t)EPOLLOUT) && !receive(c)) || !flush_out(c))
        close_connection(c);
    }
  }
}
