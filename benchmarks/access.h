// What a connection needs at a server with TLS or access control. Needs OpenSSL; compiled only with -DHAS_OPENSSL.
//
//   TLS      TLS 1.3 with one suite, so that all servers do the same work; the certificate is not checked
//   login    7060 user, nonce -> nonce of the server; 7061 proof = HMAC-SHA256(secret, both nonces); once, before the load
//   sign     HMAC-SHA1 over the values of the fields by the order of their keys, and the body: of every single request
//
// The signed text is derived from the template of the request: its values, with the same places for what differs.
#ifndef HOLDFAST_ACCESS_H
#define HOLDFAST_ACCESS_H

#include "bench.h"
#include "template.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#define SUITE "TLS_AES_256_GCM_SHA384" // the first one that clients of OpenSSL and of Java offer
#define SIGNATURE_SIZE 28              // SHA-1 in base64
#define NONCE_SIZE 32
#define TLS_READ_SIZE (256 << 10)

static struct part signed_parts[PARTS_MAX];
static int signed_part_count;

static _Noreturn void die_of_tls(const char *what) {
  fprintf(stderr, "%s: %s\n", what, ERR_reason_error_string(ERR_get_error()));
  exit(1);
}

// ---- TLS

static SSL *start_tls(int fd) {
  static SSL_CTX *context;
  if (!context) {
    context = SSL_CTX_new(TLS_client_method());
    if (!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) || !SSL_CTX_set_ciphersuites(context, SUITE))
      die_of_tls("TLS");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_default_read_buffer_len(context, TLS_READ_SIZE);
    SSL_CTX_set_read_ahead(context, 1);
  }
  SSL *tls = SSL_new(context);
  if (!tls || !SSL_set_fd(tls, fd)) die_of_tls("TLS");
  if (SSL_connect(tls) != 1) die_of_tls("TLS handshake");
  return tls;
}

// As read(2) and write(2) on a socket that does not block: -1 with EAGAIN while there is nothing to do.
static ssize_t tls_result(SSL *tls, int n, const char *what) {
  if (n > 0) return n;
  int error = SSL_get_error(tls, n);
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) die_of_tls(what);
  errno = EAGAIN;
  return -1;
}

static ssize_t tls_read(SSL *tls, void *to, size_t size) {
  return tls_result(tls, SSL_read(tls, to, (int)size), "TLS read");
}

static ssize_t tls_write(SSL *tls, const void *from, size_t size) {
  return tls_result(tls, SSL_write(tls, from, (int)size), "TLS write");
}

// ---- login

static void exchange_all(int fd, SSL *tls, bool writes, char *data, size_t size) {
  while (size) {
    ssize_t n = writes ? (tls ? tls_write(tls, data, size) : write(fd, data, size))
                       : (tls ? tls_read(tls, data, size) : read(fd, data, size));
    if (n <= 0) die("login");
    data += n, size -= (size_t)n;
  }
}

// Sends a request with these fields on a socket that still blocks; returns the header of its answer.
static char *ask(int fd, SSL *tls, int code, const char *user, const char *name, const char *value) {
  static char header[4096];
  char frame[1024];
  int length = snprintf(frame + 8, sizeof frame - 8,
                        "{\"code\":%d,\"extFields\":{\"user\":\"%s\",\"%s\":\"%s\"},\"flag\":0,\"language\":\"JAVA\","
                        "\"opaque\":%d,\"version\":513}", code, user, name, value, code);
  put_u32(frame, 4 + (uint32_t)length);
  put_u32(frame + 4, (uint32_t)length);
  exchange_all(fd, tls, true, frame, 8 + (size_t)length);
  exchange_all(fd, tls, false, frame, 8);
  uint32_t size = get_u32(frame) - 4, header_size = get_u32(frame + 4) & 0xFFFFFF;
  if (header_size >= sizeof header || header_size != size) die("login: an answer that is too large");
  exchange_all(fd, tls, false, header, size);
  header[size] = 0;
  if (strstr(header, "\"code\":") && !strstr(header, "\"code\":0,") && !strstr(header, "\"code\":0}")) {
    fprintf(stderr, "login refused: %s\n", header);
    exit(1);
  }
  return header;
}

static void log_in(int fd, SSL *tls, const char *user, const char *secret) {
  unsigned char random[NONCE_SIZE], digest[EVP_MAX_MD_SIZE];
  char nonce[64], server_nonce[128], proven[512], proof[64];
  unsigned int digest_size;
  if (RAND_bytes(random, NONCE_SIZE) != 1) die_of_tls("login");
  EVP_EncodeBlock((unsigned char *)nonce, random, NONCE_SIZE);
  const char *answer = ask(fd, tls, 7060, user, "clientNonce", nonce);
  const char *found = strstr(answer, "\"serverNonce\":\"");
  if (!found || sscanf(found + strlen("\"serverNonce\":\""), "%127[^\"]", server_nonce) != 1 ||
      strstr(answer, "\"required\":\"false\"")) {
    fprintf(stderr, "the server wants no login: %s\n", answer);
    exit(1);
  }
  int size = snprintf(proven, sizeof proven, "holdfast login client%c%s%c%s%c%s", 0, user, 0, nonce, 0, server_nonce);
  HMAC(EVP_sha256(), secret, (int)strlen(secret), (unsigned char *)proven, (size_t)size, digest, &digest_size);
  EVP_EncodeBlock((unsigned char *)proof, digest, (int)digest_size);
  ask(fd, tls, 7061, user, "proof", proof);
}

// ---- signatures

// Derives what is signed from the template: the values of its fields, which are in the order of their keys.
static void make_signed_parts(void) {
  static char text[16384], key[64], last_key[64];
  size_t have = 0, key_size = 0;
  bool in_fields = false, in_text = false, is_value = false, is_signature = false;
  for (int i = 0; i < part_count; i++) {
    const char *at = parts[i].text, *start = strstr(at, "\"extFields\":{");
    if (start) at = start + strlen("\"extFields\":{"), in_fields = true;
    for (; in_fields && *at; at++) {
      if (!in_text && *at == '}') in_fields = false;
      if (*at == ',' && !in_text) is_value = false;
      if (*at == ':' && !in_text) is_value = true;
      if (*at == '"') {
        in_text = !in_text;
        if (is_value) continue;
        if (in_text) key_size = 0;
        key[key_size] = 0;
        if (in_text) continue;
        if (strcmp(last_key, key) >= 0) die("the fields of a signed request must be in the order of their keys");
        strcpy(last_key, key);
        is_signature = !strcmp(key, "Signature");
      } else if (in_text && !is_value) {
        if (key_size + 1 < sizeof key) key[key_size++] = *at;
      } else if (in_text && !is_signature && have + 1 < sizeof text) {
        bool is_escape = !strncmp(at, "\\u00", 4);
        text[have++] = is_escape ? (char)strtol((char[]){at[4], at[5], 0}, NULL, 16) : *at;
        if (is_escape) at += 5;
      }
    }
    bool has_place = in_text && !is_signature && parts[i].place != PLACE_NONE;
    if (!has_place && i + 1 < part_count) continue;
    char *kept = take(1, have + 1);
    memcpy(kept, text, have);
    signed_parts[signed_part_count++] = (struct part){kept, have, has_place ? parts[i].place : PLACE_NONE};
    have = 0;
  }
}

static void put_signature(char *to, const char *secret, const void *data, size_t size) {
  unsigned char digest[EVP_MAX_MD_SIZE], text[SIGNATURE_SIZE + 1];
  unsigned int digest_size;
  if (!HMAC(EVP_sha1(), secret, (int)strlen(secret), data, size, digest, &digest_size)) die_of_tls("HMAC-SHA1");
  EVP_EncodeBlock(text, digest, (int)digest_size);
  memcpy(to, text, SIGNATURE_SIZE);
}

#endif
