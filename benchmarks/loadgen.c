// Load for a RocketMQ broker or name server: C connections, each with D requests in flight, from one epoll thread.
//
//   loadgen MODE port=P [connections=1] [in_flight=1] [seconds=3] [warm=0.3] [requests=0] [topic=TopicTest]
//           [broker=broker-a] [queues=4] [size=1024] [batch=100] [count=32] [bytes=262144] [step=COUNT] [span=100000]
//           [tls=0] [auth=none] [user=load] [secret=]
//
//   send    one message of `size` bytes a request (code 310), going round `queues`
//   outer   `batch` messages of `size` bytes in one request, which the broker splits (320)
//   inner   the same with an id of the batch, which a broker keeps as one record where the topic is indexed by batch (320)
//   closed  the same as our producer writes it: it says outside how many there are, and that their ids follow that of the batch
//   pull    up to `count` messages or `bytes` bytes a request (11); offsets go in steps of `step` round 0..`span`
//   route   where the queues of `topic` are (105)
//
// With tls=1 connections are encrypted. With auth=login each connection logs in before the load; with auth=sign every
// request has its own signature. These need OpenSSL (access.h); without it such loads are refused.
//
// It is a closed loop: an answer makes room for the next request, so a slow server slows the load, and latencies are those
// of a server that is as busy as it can be. Every answer is checked: its opaque must be of a request in flight on that
// connection, once, in any order; its code is counted; the records of a pull must be whole, of the queue that was asked
// for, at consecutive offsets from the one asked for. With requests=N it stops after N requests instead of after a time.
//
// Prints one JSON line. `client_cpu` is the share of one core that this program used: well below 1 the server was the limit.
// Exit status 1: an answer was wrong or missing. A refusal (code other than 0) is not wrong; it is counted by its code.
//
//   connection   | unsent requests | -> socket -> prefix (8) -> header (JSON) -> body, walked as a stream, never kept
#include "bench.h"
#include "latency.h"
#include "template.h"
#ifdef HAS_OPENSSL
#include "access.h"
#endif

#include <sys/epoll.h>

enum mode { SEND, OUTER, INNER, CLOSED, PULL, ROUTE, MODES };
enum auth { NONE, LOGIN, SIGN, AUTHS };
enum stage { IN_PREFIX, IN_HEADER, IN_BODY };

#define OPAQUE_BASE 1000000000u // above what other clients of a test use, and twice it still fits Java's int
#define HEADER_MAX (1 << 20)
#define FRAME_MAX (64u << 20)
#define RECEIVE_SIZE (256 << 10)
#define RECORD_HEAD 28 // size, magic, crc, queue id, flag, queue offset
#define RECORD_MAGIC 0xDAA320A7u
#define REFUSALS_MAX 16
#define PATIENCE_NS 10000000000LL

static const char *const MODE_NAMES[MODES] = {"send", "outer", "inner", "closed", "pull", "route"};

static const char *const AUTH_NAMES[AUTHS] = {"none", "login", "sign"};

struct options {
  enum mode mode;
  enum auth auth;
  bool tls;
  int port, connections, in_flight, queues, size, batch, count;
  long bytes, step, span, requests;
  double seconds, warm;
  const char *topic, *broker, *user, *secret;
};

struct slot {
  uint32_t opaque; // 0 while free
  uint32_t queue;
  uint64_t offset;
  int64_t sent_ns;
};

struct connection {
  int fd;
#ifdef HAS_OPENSSL
  SSL *tls; // NULL on a plain connection
#endif
  bool wants_write;
  char *out;
  size_t out_start, out_end;
  struct slot *slots;
  int *free_slots, free_count;
  uint32_t generation;
  // What has come of the answer being received.
  enum stage stage;
  unsigned char prefix[8], *header;
  size_t have, header_size, header_capacity, body_left;
  struct slot *answered;
  long code;
  // What has come of the record being received, in the body of a pull.
  unsigned char record[RECORD_HEAD];
  size_t record_have, record_left;
  uint64_t record_offset;
};

static struct options opt;
static char *body;
static size_t body_size, request_max, item_size, item_serial_at;
static struct latencies latencies;
static struct { long code, count; } refusals[REFUSALS_MAX];
static uint64_t sent, sent_bytes, answered, accepted, messages, received, reads, wrong, refusal_count, serial;
static bool stopping;
static int poll_fd;

static bool is_batch(void) {
  return opt.mode == OUTER || opt.mode == INNER || opt.mode == CLOSED;
}

static void complain(const char *what, const unsigned char *text, size_t length) {
  if (wrong++ < 3) fprintf(stderr, "%s: %.*s\n", what, (int)(length < 400 ? length : 400), (const char *)text);
}

// ---- requests

static void add_head(int code) {
  if (opt.auth != SIGN) {
    add_part(PLACE_NONE, "{\"code\":%d,\"extFields\":{", code);
    return;
  }
  add_part(PLACE_SIGNATURE, "{\"code\":%d,\"extFields\":{\"AccessKey\":\"%s\",\"Signature\":\"", code, opt.user);
  add_part(PLACE_NONE, "\",");
}

static void add_tail(void) {
  add_part(PLACE_OPAQUE, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
  add_part(PLACE_NONE, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}");
}

// The fields and their order are those that a Java 5.5.0 client sends.
static void make_send_parts(long born_ms) {
  bool single = opt.mode == SEND;
  add_head(single ? 310 : 320);
  add_part(PLACE_QUEUE, "\"a\":\"load\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"", opt.topic);
  if (single) {
    add_part(PLACE_SERIAL,
             "\",\"f\":\"0\",\"g\":\"%ld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F0000010000251A69D70A1B", born_ms);
    add_part(PLACE_NONE, "\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002");
  } else if (opt.mode == INNER) {
    add_part(PLACE_SERIAL,
             "\",\"f\":\"0\",\"g\":\"%ld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F0000010000251A69D70A1B", born_ms);
    add_part(PLACE_NONE, "\\u0002WAIT\\u0001true\\u0002");
  } else if (opt.mode == CLOSED) {
    add_part(PLACE_SERIAL,
             "\",\"f\":\"192\",\"g\":\"%ld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F0000010000251A69D70A1B", born_ms);
    add_part(PLACE_NONE, "\\u0002INNER_NUM\\u0001%d\\u0002INNER_IDS\\u0001next\\u0002TAGS\\u0001TagA\\u0002", opt.batch);
  } else {
    add_part(PLACE_NONE, "\",\"f\":\"0\",\"g\":\"%ld\",\"h\":\"0\",\"i\":\"WAIT\\u0001true\\u0002", born_ms);
  }
  add_part(PLACE_NONE, "\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\",\"n\":\"%s\"", single ? "false" : "true", opt.broker);
  add_tail();
}

static void make_pull_parts(void) {
  add_head(11);
  add_part(PLACE_NONE,
           "\"bname\":\"%s\",\"commitOffset\":\"0\",\"consumerGroup\":\"load\","
           "\"maxMsgBytes\":\"%ld\",\"maxMsgNums\":\"%d\"",
           opt.broker, opt.bytes, opt.count);
  add_part(PLACE_QUEUE, ",\"queueId\":\"");
  add_part(PLACE_OFFSET, "\",\"queueOffset\":\"");
  // sysFlag 4: the subscription is in the request; nothing is committed, and an empty queue answers at once.
  add_part(PLACE_NONE,
           "\",\"subVersion\":\"0\",\"subscription\":\"*\",\"suspendTimeoutMillis\":\"0\",\"sysFlag\":\"4\","
           "\"topic\":\"%s\"",
           opt.topic);
  add_tail();
}

static void fill_body(char *to, size_t size) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789:\",{} ";
  uint32_t state = 12345;
  for (size_t i = 0; i < size; i++) {
    state = state * 1103515245u + 12345u;
    to[i] = letters[(state >> 16) % (sizeof letters - 1)];
  }
}

// An item of a batch: size, magic, crc, flag, body size, body, properties size, properties. Brokers compute the crc anew.
static void make_batch_body(void) {
  static const char properties[] = "UNIQ_KEY\0017F0000010000251A69D70A1B00000000\002TAGS\001TagA\002";
  size_t properties_size = sizeof properties - 1;
  item_size = 20 + (size_t)opt.size + 2 + properties_size;
  item_serial_at = 22 + (size_t)opt.size + strlen("UNIQ_KEY\0017F0000010000251A69D70A1B");
  body_size = item_size * (size_t)opt.batch;
  body = take(1, body_size);
  for (int i = 0; i < opt.batch; i++) {
    char *item = body + (size_t)i * item_size;
    put_u32(item, (uint32_t)item_size);
    put_u32(item + 4, RECORD_MAGIC);
    put_u32(item + 16, (uint32_t)opt.size);
    fill_body(item + 20, (size_t)opt.size);
    item[20 + opt.size] = (char)(properties_size >> 8);
    item[21 + opt.size] = (char)properties_size;
    memcpy(item + 22 + opt.size, properties, properties_size);
  }
}

static void make_request(void) {
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  long born_ms = wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
  if (opt.mode == SEND || is_batch()) make_send_parts(born_ms);
  if (opt.mode == PULL) make_pull_parts();
  if (opt.mode == ROUTE) {
    add_head(105);
    add_part(PLACE_NONE, "\"topic\":\"%s\"", opt.topic);
    add_tail();
  }
  if (opt.mode == SEND) {
    body_size = (size_t)opt.size;
    body = take(1, body_size + 1);
    fill_body(body, body_size);
  }
  if (is_batch()) make_batch_body();
  request_max = 8 + body_size;
  for (int i = 0; i < part_count; i++) request_max += parts[i].length + 28; // the longest value is a signature
#ifdef HAS_OPENSSL
  if (opt.auth == SIGN) make_signed_parts();
#endif
}

static char *put_body(char *to) {
  if (!body_size) return to;
  memcpy(to, body, body_size);
  if (is_batch())
    for (int i = 0; i < opt.batch; i++) put_hex8(to + (size_t)i * item_size + item_serial_at, (uint32_t)serial++);
  return to + body_size;
}

static char *put_parts(char *to, const struct part *from, int count, const struct slot *slot, uint32_t id) {
  for (int i = 0; i < count; i++) {
    memcpy(to, from[i].text, from[i].length);
    to += from[i].length;
    if (from[i].place == PLACE_OPAQUE) to = put_number(to, slot->opaque);
    if (from[i].place == PLACE_QUEUE) to = put_number(to, slot->queue);
    if (from[i].place == PLACE_OFFSET) to = put_number(to, slot->offset);
    if (from[i].place == PLACE_SERIAL) to = put_hex8(to, id);
#ifdef HAS_OPENSSL
    if (from[i].place == PLACE_SIGNATURE) to += SIGNATURE_SIZE;
#endif
  }
  return to;
}

#ifdef HAS_OPENSSL
static void sign_request(char *frame, const char *frame_body, const struct slot *slot, uint32_t id) {
  static char *content;
  if (!content) content = take(1, request_max);
  char *end = put_parts(content, signed_parts, signed_part_count, slot, id);
  memcpy(end, frame_body, body_size);
  put_signature(frame + 8 + parts[0].length, opt.secret, content, (size_t)(end - content) + body_size);
}
#endif

static char *put_request(char *to, const struct slot *slot) {
  uint32_t id = (uint32_t)serial++;
  char *frame_body = put_parts(to + 8, parts, part_count, slot, id);
  uint32_t header_size = (uint32_t)(frame_body - to - 8);
  put_u32(to, 4 + header_size + (uint32_t)body_size);
  put_u32(to + 4, header_size);
  char *end = put_body(frame_body);
#ifdef HAS_OPENSSL
  if (opt.auth == SIGN) sign_request(to, frame_body, slot, id);
#endif
  return end;
}

// Puts a request into every free slot of the connection, unless the end has come.
static void refill(struct connection *c, int64_t now) {
  if (c->out_start == c->out_end) c->out_start = c->out_end = 0;
  while (c->free_count && !stopping) {
    if (opt.requests && sent >= (uint64_t)opt.requests) return;
    size_t capacity = request_max * (size_t)opt.in_flight;
    if (c->out_end + request_max > capacity) {
      // What is unsent never fills the buffer while a slot is free, so moving it to the front makes room.
      memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
      c->out_end -= c->out_start;
      c->out_start = 0;
    }
    int index = c->free_slots[--c->free_count];
    struct slot *slot = &c->slots[index];
    uint64_t turn = sent / (uint64_t)opt.queues;
    c->generation = (c->generation + 1) % (OPAQUE_BASE / (uint32_t)opt.in_flight);
    slot->opaque = OPAQUE_BASE + c->generation * (uint32_t)opt.in_flight + (uint32_t)index;
    slot->queue = (uint32_t)(sent % (uint64_t)opt.queues);
    slot->offset = opt.mode == PULL ? turn * (uint64_t)opt.step % (uint64_t)(opt.span - opt.count + 1) : 0;
    slot->sent_ns = now;
    c->out_end = (size_t)(put_request(c->out + c->out_end, slot) - c->out);
    sent++;
  }
}

static ssize_t write_some(struct connection *c) {
#ifdef HAS_OPENSSL
  if (c->tls) return tls_write(c->tls, c->out + c->out_start, c->out_end - c->out_start);
#endif
  return write(c->fd, c->out + c->out_start, c->out_end - c->out_start);
}

static ssize_t read_some(struct connection *c, void *to, size_t size) {
#ifdef HAS_OPENSSL
  if (c->tls) return tls_read(c->tls, to, size);
#endif
  return recv(c->fd, to, size, 0);
}

static void flush_out(struct connection *c) {
  while (c->out_start < c->out_end) {
    ssize_t n = write_some(c);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) die("write");
    c->out_start += (size_t)n;
    sent_bytes += (uint64_t)n;
  }
  bool wants = c->out_start < c->out_end;
  if (wants == c->wants_write) return;
  struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
  c->wants_write = wants;
}

// ---- answers

static void count_refusal(long code) {
  for (int i = 0; i < REFUSALS_MAX; i++) {
    if (refusals[i].count && refusals[i].code != code) continue;
    refusals[i].code = code;
    refusals[i].count++;
    return;
  }
  wrong++; // more kinds of refusal than anybody has
}

static long find_number(const unsigned char *header, size_t size, const char *name, long otherwise) {
  const char *found = memmem(header, size, name, strlen(name));
  return found ? strtol(found + strlen(name), NULL, 10) : otherwise;
}

static void take_header(struct connection *c, const unsigned char *header, size_t size) {
  long opaque = find_number(header, size, "\"opaque\":", -1);
  c->code = find_number(header, size, "\"code\":", -1);
  c->answered = NULL;
  long index = (opaque - (long)OPAQUE_BASE) % opt.in_flight;
  if (opaque >= (long)OPAQUE_BASE && c->slots[index].opaque == (uint32_t)opaque)
    c->answered = &c->slots[index];
  else
    complain("not an answer to anything in flight", header, size);
  if (c->code != 0) {
    count_refusal(c->code);
    if (refusal_count++ < 2) fprintf(stderr, "refused: %.*s\n", (int)size, (const char *)header);
  }
  c->record_have = c->record_left = 0;
  c->record_offset = c->answered ? c->answered->offset : 0;
  if (opt.mode == PULL && c->code == 0 && !c->body_left) complain("a pull answered with nothing", header, size);
}

// Walks the records of a pull as they stream by.
static void take_records(struct connection *c, const unsigned char *data, size_t size) {
  while (size) {
    if (c->record_left) {
      size_t n = size < c->record_left ? size : c->record_left;
      c->record_left -= n, data += n, size -= n;
      continue;
    }
    size_t n = RECORD_HEAD - c->record_have;
    n = size < n ? size : n;
    memcpy(c->record + c->record_have, data, n);
    c->record_have += n, data += n, size -= n;
    if (c->record_have < RECORD_HEAD) return;
    uint32_t total = get_u32(c->record);
    bool good = total > RECORD_HEAD && get_u32(c->record + 4) == RECORD_MAGIC && c->answered &&
                get_u32(c->record + 12) == c->answered->queue && get_u64(c->record + 20) == c->record_offset;
    if (!good) complain("a record that was not asked for", (const unsigned char *)"", 0);
    c->record_left = total > RECORD_HEAD ? total - RECORD_HEAD : 0;
    c->record_have = 0;
    c->record_offset++;
    messages++;
  }
}

static void finish_answer(struct connection *c, int64_t now) {
  c->stage = IN_PREFIX;
  c->have = 0;
  if (c->record_left || c->record_have) complain("a record cut off", c->record, 0);
  if (!c->answered) return;
  answered++;
  if (c->code == 0) {
    uint64_t ns = (uint64_t)(now - c->answered->sent_ns);
    accepted++;
    note_latency(&latencies, ns);
    if (opt.mode == SEND) messages++;
    if (is_batch()) messages += (uint64_t)opt.batch;
  }
  c->answered->opaque = 0;
  c->free_slots[c->free_count++] = (int)(c->answered - c->slots);
}

static void begin_header(struct connection *c) {
  uint32_t frame_size = get_u32(c->prefix), word = get_u32(c->prefix + 4);
  c->header_size = word & 0xFFFFFF;
  if (frame_size > FRAME_MAX || c->header_size > HEADER_MAX || c->header_size + 4 > frame_size || word >> 24) {
    fprintf(stderr, "not a frame: size %u, header word %08X\n", frame_size, word);
    exit(1);
  }
  c->body_left = frame_size - 4 - c->header_size;
  c->stage = IN_HEADER;
  c->have = 0;
  if (c->header_size > c->header_capacity) {
    c->header_capacity = 2 * c->header_size;
    c->header = realloc(c->header, c->header_capacity);
    if (!c->header) die("out of memory");
  }
}

// Takes what it can of `data` into `to`; returns the bytes used. `have` reaching `wanted` says that it is complete.
static size_t collect(struct connection *c, unsigned char *to, size_t wanted, const unsigned char *data, size_t size) {
  size_t n = wanted - c->have;
  n = size < n ? size : n;
  memcpy(to + c->have, data, n);
  c->have += n;
  return n;
}

static void take_bytes(struct connection *c, const unsigned char *data, size_t size, int64_t now) {
  while (size) {
    size_t n = 0;
    if (c->stage == IN_PREFIX) {
      n = collect(c, c->prefix, 8, data, size);
      if (c->have == 8) begin_header(c);
    } else if (c->stage == IN_HEADER) {
      bool whole = !c->have && size >= c->header_size;
      n = whole ? c->header_size : collect(c, c->header, c->header_size, data, size);
      if (whole || c->have == c->header_size) {
        take_header(c, whole ? data : c->header, c->header_size);
        c->stage = IN_BODY;
      }
    } else {
      n = size < c->body_left ? size : c->body_left;
      if (opt.mode == PULL && c->code == 0) take_records(c, data, n);
      c->body_left -= n;
    }
    data += n, size -= n;
    if (c->stage == IN_BODY && !c->body_left) finish_answer(c, now);
  }
}

// Receives once; returns whether there may be more that no event will announce.
static bool receive(struct connection *c) {
  static unsigned char buffer[RECEIVE_SIZE];
  ssize_t n = read_some(c, buffer, sizeof buffer);
  if (n < 0 && errno == EAGAIN) return false;
  if (n < 0) die("recv");
  if (n == 0) {
    fprintf(stderr, "the server closed a connection after %llu answers\n", (unsigned long long)answered);
    exit(1);
  }
  received += (uint64_t)n;
  reads++;
  int64_t now = now_ns();
  take_bytes(c, buffer, (size_t)n, now);
  refill(c, now);
  return opt.tls; // TLS keeps what it has read from the socket beyond one record
}

// ---- the run

static struct connection *open_connection(void) {
  struct connection *c = take(1, sizeof *c);
  struct sockaddr_in address = loopback(opt.port);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0) die("socket");
  if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
  no_delay(c->fd);
#ifdef HAS_OPENSSL
  if (opt.tls) c->tls = start_tls(c->fd);
  if (opt.auth == LOGIN) log_in(c->fd, c->tls, opt.user, opt.secret);
#endif
  non_blocking(c->fd);
  c->out = take((size_t)opt.in_flight, request_max);
  c->slots = take((size_t)opt.in_flight, sizeof *c->slots);
  c->free_slots = take((size_t)opt.in_flight, sizeof *c->free_slots);
  c->header_capacity = 1024;
  c->header = take(1, c->header_capacity);
  for (int i = 0; i < opt.in_flight; i++) c->free_slots[c->free_count++] = i;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
  return c;
}

struct counters {
  uint64_t answered, accepted, messages, sent_bytes, received, reads;
  double cpu;
  int64_t at_ns;
};

static struct counters count_now(void) {
  return (struct counters){answered, accepted, messages, sent_bytes, received, reads, cpu_seconds(), now_ns()};
}

// Serves events once; returns false after a long silence.
static bool turn(void) {
  static int64_t heard_ns;
  struct epoll_event events[256];
  int n = epoll_wait(poll_fd, events, 256, 1000);
  if (n < 0 && errno != EINTR) die("epoll_wait");
  if (n <= 0) return !heard_ns || now_ns() - heard_ns < PATIENCE_NS;
  heard_ns = now_ns();
  for (int i = 0; i < n; i++) {
    struct connection *c = events[i].data.ptr;
    bool may_have_more = events[i].events & ~(uint32_t)EPOLLOUT;
    while (may_have_more) may_have_more = receive(c);
    flush_out(c);
  }
  return true;
}

static void report(const struct counters *from, const struct counters *to) {
  double seconds = (to->at_ns - from->at_ns) / 1e9;
  double requests = (to->accepted - from->accepted) / seconds;
  printf("{\"mode\":\"%s\",\"connections\":%d,\"in_flight\":%d,\"seconds\":%.3f,\"requests\":%llu,", MODE_NAMES[opt.mode],
         opt.connections, opt.in_flight, seconds, (unsigned long long)(to->accepted - from->accepted));
  printf("\"requests_per_s\":%.1f,\"messages_per_s\":%.1f,\"up_mb_per_s\":%.2f,\"down_mb_per_s\":%.2f,", requests,
         (to->messages - from->messages) / seconds, (to->sent_bytes - from->sent_bytes) / 1e6 / seconds,
         (to->received - from->received) / 1e6 / seconds);
  printf("\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,", percentile_us(&latencies, .5), percentile_us(&latencies, .99),
         percentile_us(&latencies, .999), latencies.max_ns / 1e3);
  printf("\"client_cpu\":%.3f,\"answers_per_read\":%.2f,\"total_requests\":%llu,\"unanswered\":%llu,\"wrong\":%llu,",
         (to->cpu - from->cpu) / seconds, (to->answered - from->answered) / (double)(to->reads - from->reads + !reads),
         (unsigned long long)sent, (unsigned long long)(sent - answered), (unsigned long long)wrong);
  printf("\"refused\":{");
  for (int i = 0; i < REFUSALS_MAX && refusals[i].count; i++)
    printf("%s\"%ld\":%ld", i ? "," : "", refusals[i].code, refusals[i].count);
  printf("}}\n");
}

static int run(void) {
  poll_fd = epoll_create1(0);
  struct connection **all = take((size_t)opt.connections, sizeof *all);
  for (int i = 0; i < opt.connections; i++) all[i] = open_connection();
  struct counters from = count_now(), to;
  int64_t start = from.at_ns, warm_end = start + (int64_t)(opt.warm * 1e9);
  bool warming = opt.warm > 0 && !opt.requests;
  int64_t end = (warming ? warm_end : start) + (int64_t)(opt.seconds * 1e9);
  for (int i = 0; i < opt.connections; i++) refill(all[i], now_ns()), flush_out(all[i]);
  bool alive = true;
  while (alive && (opt.requests ? answered < (uint64_t)opt.requests : now_ns() < end)) {
    alive = turn();
    if (warming && now_ns() >= warm_end) {
      warming = false;
      memset(&latencies, 0, sizeof latencies);
      from = count_now();
      end = from.at_ns + (int64_t)(opt.seconds * 1e9);
    }
  }
  to = count_now();
  stopping = true;
  struct latencies kept = latencies;
  while (alive && answered < sent) alive = turn(); // what is in flight is checked too, but not timed
  latencies = kept;
  report(&from, &to);
  return wrong || answered != sent;
}

int main(int argc, char **argv) {
  int mode = 0;
  while (argc > 1 && mode < MODES && strcmp(argv[1], MODE_NAMES[mode])) mode++;
  const char *auth_name = text_option(argc, argv, "auth", "none");
  int auth = 0;
  while (auth < AUTHS && strcmp(auth_name, AUTH_NAMES[auth])) auth++;
  if (argc < 3 || mode == MODES || auth == AUTHS) {
    fprintf(stderr, "usage: loadgen send|outer|inner|closed|pull|route port=P [key=value ...]; the head of loadgen.c lists the keys\n");
    return 2;
  }
#define NUMBER(key, otherwise) number_option(argc, argv, key, otherwise)
  opt = (struct options){
      .mode = (enum mode)mode, .auth = (enum auth)auth, .tls = NUMBER("tls", 0) != 0, .port = (int)NUMBER("port", 10911), .connections = (int)NUMBER("connections", 1),
      .in_flight = (int)NUMBER("in_flight", 1), .queues = (int)NUMBER("queues", 4), .size = (int)NUMBER("size", 1024),
      .batch = (int)NUMBER("batch", 100), .count = (int)NUMBER("count", 32), .bytes = (long)NUMBER("bytes", 262144),
      .step = (long)NUMBER("step", NUMBER("count", 32)), .span = (long)NUMBER("span", 100000),
      .requests = (long)NUMBER("requests", 0), .seconds = NUMBER("seconds", 3), .warm = NUMBER("warm", .3),
      .topic = text_option(argc, argv, "topic", "TopicTest"),
      .broker = text_option(argc, argv, "broker", "broker-a"),
      .user = text_option(argc, argv, "user", "load"), .secret = text_option(argc, argv, "secret", ""),
  };
  if (opt.connections < 1 || opt.in_flight < 1 || opt.queues < 1 || opt.size < 1 || opt.span < opt.count) {
    fprintf(stderr, "loadgen: connections, in_flight, queues and size start at 1, and span holds at least count\n");
    return 2;
  }
#ifndef HAS_OPENSSL
  if (opt.tls || opt.auth != NONE) {
    fprintf(stderr, "loadgen: compiled without OpenSSL, which tls and auth need\n");
    return 2;
  }
#endif
  make_request();
  return run();
}
