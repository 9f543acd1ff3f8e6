/* SPDX-License-Identifier: Apache-2.0
 *
 * A real redis-server of this machine, empty, on a free port of 127.0.0.1, in a directory of its own
 * and without persistence. It ends with the test program, however that ends.
 *
 * Threads:   one thread.
 * Ownership: start() gives a server to stop().
 */
#ifndef DCTF_TESTS_REDIS_SERVER_H
#define DCTF_TESTS_REDIS_SERVER_H

#include <stdbool.h>
#include <stdint.h>

struct redis_server;

/* Tells on stderr when it is not. */
bool redis_server_is_installed(void);
/* `options`: more of them, a NULL after the last; NULL: none. `tls`: the port speaks TLS. Serves when it
 * returns. */
struct redis_server *redis_server_start(const char *const *options, bool tls);
void redis_server_stop(struct redis_server *server);
uint16_t redis_server_port(const struct redis_server *server);
/* SIGSTOP, SIGCONT. */
void redis_server_signal(struct redis_server *server, int signal);
/* kill -9, and a new one at the same port. */
void redis_server_kill(struct redis_server *server);
void redis_server_restart(struct redis_server *server);

/* For cmocka, as setup and teardown of a test or a group: a server without options or TLS. */
extern struct redis_server *redis_server_shared;
int redis_server_setup(void **state);
int redis_server_teardown(void **state);

#endif
