// The text of a request, cut where something differs from one request to the next.
//
//   {"code":310, ... "e":"  QUEUE  ", ... "opaque":  OPAQUE  , ... }
#ifndef HOLDFAST_TEMPLATE_H
#define HOLDFAST_TEMPLATE_H

#include "bench.h"

#include <stdarg.h>

enum place { PLACE_NONE, PLACE_OPAQUE, PLACE_QUEUE, PLACE_OFFSET, PLACE_SERIAL, PLACE_SIGNATURE };

#define PARTS_MAX 16

// A request is text with places for what differs: `text` goes before the place.
struct part {
  char *text;
  size_t length;
  enum place place;
};

static struct part parts[PARTS_MAX];
static int part_count;

static void add_part(enum place place, const char *format, ...) {
  if (part_count == PARTS_MAX) die("too many parts");
  char *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  int length = vasprintf(&text, format, arguments);
  va_end(arguments);
  if (length < 0) die("out of memory");
  parts[part_count++] = (struct part){text, (size_t)length, place};
}

static char *put_number(char *to, uint64_t value) {
  char digits[20];
  int n = 0;
  do digits[n++] = (char)('0' + value % 10);
  while (value /= 10);
  while (n) *to++ = digits[--n];
  return to;
}

static char *put_hex8(char *to, uint32_t value) {
  for (int shift = 28; shift >= 0; shift -= 4) *to++ = "0123456789ABCDEF"[value >> shift & 15];
  return to;
}

#endif
