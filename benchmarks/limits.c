// What this machine can do at most: bytes through loopback, bytes into a file, syncs to the disk.
//
//   limits dir=FOLDER [seconds=1] [only=batch]
//
// Prints one JSON object. Two processes for what goes through a socket, one for the rest. Throughputs are of the pieces a
// broker would use: 1 MiB (a large pull), 110 KiB (a batch of 100), 1.2 KiB (one record). The file is preallocated in
// blocks, not written before, as a fresh log file is. `only=batch` measures what a batch of 100 passes: loopback and file.
#include "bench.h"

#include <sched.h>
#include <sys/wait.h>

#define MIB (1 << 20)
#define BATCH (110 << 10)
#define FILE_SIZE (1L << 30)
#define SYNCS_MAX 100000

static double seconds;
static const char *folder;

static void make_pair(int pair[2]) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1)) die("listen");
  getsockname(listener, (struct sockaddr *)&address, &size);
  pair[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(pair[0], (struct sockaddr *)&address, sizeof address)) die("connect");
  pair[1] = accept(listener, NULL, NULL);
  close(listener);
  no_delay(pair[0]);
  no_delay(pair[1]);
}

static void send_until(int fd, size_t chunk, int64_t end) {
  char *data = take(1, chunk);
  while (now_ns() < end && write(fd, data, chunk) > 0) {
  }
  _exit(0);
}

static double loopback_mb_per_s(size_t chunk) {
  int pair[2];
  make_pair(pair);
  int64_t start = now_ns();
  pid_t child = fork();
  if (!child) {
    close(pair[1]);
    send_until(pair[0], chunk, start + (int64_t)(seconds * 1e9));
  }
  close(pair[0]);
  char *data = take(1, MIB);
  size_t total = 0;
  for (ssize_t n; (n = read(pair[1], data, MIB)) > 0;) total += (size_t)n;
  double taken = (now_ns() - start) / 1e9;
  waitpid(child, NULL, 0);
  close(pair[1]);
  free(data);
  return total / 1e6 / taken;
}

static bool read_whole(int fd, char *data, size_t size) {
  for (size_t have = 0; have < size;) {
    ssize_t n = read(fd, data + have, size - have);
    if (n <= 0) return false;
    have += (size_t)n;
  }
  return true;
}

static void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set); // where it is not allowed the figure is that of whatever the scheduler chose
}

// One request of 1400 bytes and one answer of 200 at a time: what a send costs when nothing is done for it. On one core it
// is a task switch, on two it is waking a sleeping core, which in a virtual machine costs ten times as much.
static double round_trips_per_s(int core) {
  enum { REQUEST = 1400, ANSWER = 200 };
  int pair[2];
  char data[REQUEST] = {0};
  make_pair(pair);
  pid_t child = fork();
  if (!child) {
    pin_to(core);
    close(pair[0]);
    while (read_whole(pair[1], data, REQUEST) && write(pair[1], data, ANSWER) == ANSWER) {
    }
    _exit(0);
  }
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  pin_to(0);
  close(pair[1]);
  long count = 0;
  int64_t start = now_ns(), end = start + (int64_t)(seconds * 1e9);
  while (now_ns() < end && write(pair[0], data, REQUEST) == REQUEST && read_whole(pair[0], data, ANSWER)) count++;
  double taken = (now_ns() - start) / 1e9;
  close(pair[0]);
  waitpid(child, NULL, 0);
  sched_setaffinity(0, sizeof before, &before);
  return count / taken;
}

static int fresh_file(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/limits.tmp", folder);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) die(path);
  unlink(path); // the space is free as soon as the file is closed
  int fault = posix_fallocate(fd, 0, FILE_SIZE);
  if (fault) errno = fault, die("posix_fallocate");
  return fd;
}

struct written {
  double mb_per_s, synced_mb_per_s;
};

static struct written write_file(size_t chunk) {
  int fd = fresh_file();
  char *data = take(1, chunk);
  memset(data, 'x', chunk);
  long total = 0;
  int64_t start = now_ns();
  while (total + (long)chunk <= FILE_SIZE) {
    if (pwrite(fd, data, chunk, total) != (ssize_t)chunk) die("pwrite");
    total += (long)chunk;
  }
  int64_t written = now_ns();
  if (fdatasync(fd)) die("fdatasync");
  int64_t synced = now_ns();
  close(fd);
  free(data);
  return (struct written){total / 1e6 / ((written - start) / 1e9), total / 1e6 / ((synced - start) / 1e9)};
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

// Appends of 4 KiB, each synced before the next.
static void report_syncs(void) {
  int fd = fresh_file();
  char data[4096] = {1};
  int64_t *taken = take(SYNCS_MAX, sizeof *taken), start = now_ns(), end = start + (int64_t)(seconds * 1e9);
  size_t count = 0;
  while (now_ns() < end && count < SYNCS_MAX) {
    int64_t from = now_ns();
    if (pwrite(fd, data, sizeof data, (off_t)(count * sizeof data)) < 0 || fdatasync(fd)) die("fdatasync");
    taken[count++] = now_ns() - from;
  }
  double all = (now_ns() - start) / 1e9;
  qsort(taken, count, sizeof *taken, compare);
  printf(",\"fdatasync_per_s\":%.0f,\"fdatasync_p50_us\":%.0f,\"fdatasync_p99_us\":%.0f", count / all,
         taken[count / 2] / 1e3, taken[(size_t)(count * .99)] / 1e3);
  close(fd);
  free(taken);
}

static void report_batch(void) {
  write_file(BATCH); // not counted, as below
  printf("{\"loopback_110kib_mb_per_s\":%.0f", loopback_mb_per_s(BATCH));
  struct written batch = write_file(BATCH);
  printf(",\"write_110kib_mb_per_s\":%.0f,\"write_110kib_synced_mb_per_s\":%.0f}\n", batch.mb_per_s, batch.synced_mb_per_s);
}

int main(int argc, char **argv) {
  seconds = number_option(argc, argv, "seconds", 1);
  folder = text_option(argc, argv, "dir", ".");
  if (!strcmp(text_option(argc, argv, "only", ""), "batch")) {
    report_batch();
    return 0;
  }
  printf("{\"round_trips_one_core_per_s\":%.0f", round_trips_per_s(0));
  printf(",\"round_trips_two_cores_per_s\":%.0f", round_trips_per_s(1));
  printf(",\"loopback_1mib_mb_per_s\":%.0f", loopback_mb_per_s(MIB));
  printf(",\"loopback_64kib_mb_per_s\":%.0f", loopback_mb_per_s(64 << 10));
  write_file(MIB); // not counted: it pays for memory that the machine has not touched since it was started
  struct written large = write_file(MIB), batch = write_file(BATCH), record = write_file(1200);
  printf(",\"write_1mib_mb_per_s\":%.0f,\"write_1mib_synced_mb_per_s\":%.0f", large.mb_per_s, large.synced_mb_per_s);
  printf(",\"write_110kib_mb_per_s\":%.0f,\"write_110kib_synced_mb_per_s\":%.0f", batch.mb_per_s, batch.synced_mb_per_s);
  printf(",\"write_1200b_mb_per_s\":%.0f,\"write_1200b_synced_mb_per_s\":%.0f", record.mb_per_s, record.synced_mb_per_s);
  report_syncs();
  printf("}\n");
  return 0;
}
