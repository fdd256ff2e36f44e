/*
 * worker.c: processes that contend for one lock on one memcached, each as fast as it can.
 *
 *   worker CONTENDER PORT FD
 *
 * FD is the board, shared memory that benches/contended/board.py lays out and reads: how many processes
 * to start and how long to hold, when to start and to stop, and a log for each process. Every process
 * connects, says that it is ready, waits for the start, and then goes round:
 *
 *   ask, stamp, hold, stamp, release
 *
 * until it sees the stop. SIGTERM ends a wait, and nothing else.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <memlock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The item under which memlock keeps its mutex "contended". */
#define NAME "contended"
#define LOCK_KEY "lock:" NAME
#define LEASE_MS 30000
#define POLL_NS 1000000

#define NS_PER_S UINT64_C(1000000000)

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("worker: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* --- the board: the layout is that of board.py ------------------------------------------------ */

struct turn {
    uint64_t asked_ns, entered_ns, left_ns, fence;
};

/* Of 128 bytes, so that no process writes to a cache line of another. */
struct process {
    _Atomic uint64_t ready, asked_ns, turns, clashes, cpu_ns;
    uint64_t unused[11];
};

struct board {
    _Atomic uint64_t start_ns, stop_ns;
    uint64_t processes, room, hold_ns;
    uint64_t unused[3];
    _Atomic uint64_t inside; /* who is: 1 + its index; 0 is nobody */
    uint64_t unused_too[7];
    struct process process[];
};

_Static_assert(sizeof(struct board) == 16 * 8 && sizeof(struct process) == 16 * 8, "see board.py");

static struct board *board;

static void board_map(int fd)
{
    struct stat it;
    if (fstat(fd, &it) != 0)
        die("the board: %s", strerror(errno));
    board = mmap(NULL, (size_t)it.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED)
        die("the board: %s", strerror(errno));
}

static struct turn *log_of(uint64_t index)
{
    return (struct turn *)&board->process[board->processes] + index * board->room;
}

static bool stopped(void)
{
    return board->stop_ns != 0;
}

/* --- time --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    struct timespec then = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) == EINTR)
        ;
}

static uint64_t cpu_ns(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

/* --- a socket of our own ------------------------------------------------------------------ */

static int raw_fd;

static void raw_open(int port, uint64_t index)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    (void)index;
    raw_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (raw_fd < 0 || connect(raw_fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(raw_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("connect to port %d: %s", port, strerror(errno));
}

/* Sends a command of one packet and reads its reply line, without the CR LF. */
static void ask(const char *command, size_t len, char *line, size_t room)
{
    size_t got = 0;
    if (send(raw_fd, command, len, MSG_NOSIGNAL) != (ssize_t)len)
        die("send: %s", strerror(errno));
    do {
        ssize_t more = got < room ? recv(raw_fd, line + got, room - got, 0) : 0;
        if (more <= 0)
            die("receive: %s", more == 0 ? "the server hung up" : strerror(errno));
        got += (size_t)more;
    } while (line[got - 1] != '\n');
    line[got < 2 ? 0 : got - 2] = '\0';
}

/* --- polling: the safe recipe, asked for once a millisecond ---------------------------------- */

static char cas[32];

static bool polling_try(uint64_t *fence)
{
    /* memlock too asks for one second more than the lease: memcached's clock ticks once a second. */
    static const char add[] = "ms " LOCK_KEY " 1 ME T31 c\r\n1\r\n";
    char reply[64];
    ask(add, sizeof add - 1, reply, sizeof reply);
    if (strncmp(reply, "NS", 2) == 0)
        return false;
    if (strncmp(reply, "HD c", 4) != 0)
        die("ms answered '%s'", reply);
    snprintf(cas, sizeof cas, "%.31s", reply + 4);
    *fence = strtoull(cas, NULL, 10); /* memcached's versions rise with every store */
    return true;
}

static bool polling_take(uint64_t *fence)
{
    while (!polling_try(fence)) {
        if (stopped())
            return false;
        sleep_until(now_ns() + POLL_NS);
    }
    return true;
}

static void polling_give(void)
{
    char command[128], reply[64];
    int len = snprintf(command, sizeof command, "md " LOCK_KEY " C%s\r\n", cas);
    ask(command, (size_t)len, reply, sizeof reply);
    if (strcmp(reply, "HD") != 0)
        die("md answered '%s'", reply);
}

/* --- broken: grants twice now and then, to see whether that is noticed ----------------------- */

#define GRANT_A_REFUSAL_OF 16

static bool broken_owns;

static bool broken_take(uint64_t *fence)
{
    static unsigned refusals;
    while (!(broken_owns = polling_try(fence))) {
        if (stopped())
            return false;
        *fence = 1;
        if (++refusals % GRANT_A_REFUSAL_OF == 0)
            return true;
        sleep_until(now_ns() + POLL_NS);
    }
    return true;
}

static void broken_give(void)
{
    if (broken_owns)
        polling_give();
}

/* --- a relay: what a hand-over takes on this machine when nothing has to be found out --------- */

/*
 * Not a lock: each hands over to the one behind it, whose bell it knows. It has the round trips and the
 * wake-ups of memlock's hand-over: release and look at the queue in one packet, ring; woken, take the lock.
 */
#define MOST_PROCESSES 512

static int bells[MOST_PROCESSES];
static struct sockaddr_in bell_addresses[MOST_PROCESSES];
static uint64_t relay_index;
static bool relay_begins;

static void relay_prepare(void)
{
    if (board->processes > MOST_PROCESSES)
        die("the relay has room for %d processes", MOST_PROCESSES);
    for (uint64_t index = 0; index < board->processes; index++) {
        struct sockaddr_in *address = &bell_addresses[index];
        socklen_t len = sizeof *address;
        address->sin_family = AF_INET;
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        bells[index] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (bells[index] < 0 || bind(bells[index], (struct sockaddr *)address, len) != 0 ||
            getsockname(bells[index], (struct sockaddr *)address, &len) != 0)
            die("a bell: %s", strerror(errno));
    }
}

static void relay_open(int port, uint64_t index)
{
    raw_open(port, index);
    relay_index = index;
    relay_begins = index == 0;
}

static bool relay_take(uint64_t *fence)
{
    struct pollfd bell = {.fd = bells[relay_index], .events = POLLIN};
    char ring;
    for (; !relay_begins && recv(bell.fd, &ring, 1, 0) != 1; poll(&bell, 1, -1))
        if (stopped())
            return false;
    relay_begins = false;
    if (!polling_try(fence))
        die("the relay's lock is taken");
    return true;
}

static void relay_give(void)
{
    const struct sockaddr_in *next = &bell_addresses[(relay_index + 1) % board->processes];
    char command[128], reply[64];
    int len = snprintf(command, sizeof command, "md " LOCK_KEY " C%s q\r\nmg " LOCK_KEY "%%wait v\r\n", cas);
    ask(command, (size_t)len, reply, sizeof reply);
    if (strcmp(reply, "EN") != 0)
        die("md and mg answered '%s'", reply);
    if (sendto(bells[relay_index], "", 1, 0, (const struct sockaddr *)next, sizeof *next) != 1)
        die("ring: %s", strerror(errno));
}

/* --- memlock ------------------------------------------------------------------------------ */

static memlock_client *client;
static memlock_lock *lock;

static void memlock_open(int port, uint64_t index)
{
    char url[64], name[32];
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d", port);
    if (memlock_client_open(url, &client) != MEMLOCK_OK)
        die("memlock_client_open: %s", memlock_last_error());
    /* Another mutex, so that the connection is there before the race and nobody has met the lock. */
    snprintf(name, sizeof name, "warm-up-%" PRIu64, index);
    if (memlock_mutex_lock(client, name, LEASE_MS, 0, &lock) != MEMLOCK_OK ||
        memlock_unlock(lock) != MEMLOCK_OK)
        die("the first contact: %s", memlock_last_error());
}

static bool memlock_take(uint64_t *fence)
{
    int rc;
    do
        rc = memlock_mutex_lock(client, NAME, LEASE_MS, -1, &lock);
    while (rc == MEMLOCK_INTERRUPTED && !stopped());
    if (rc == MEMLOCK_INTERRUPTED)
        return false;
    if (rc != MEMLOCK_OK)
        die("memlock_mutex_lock answered %d: %s", rc, memlock_last_error());
    if (memlock_lock_fence(lock, fence) != MEMLOCK_OK)
        die("memlock_lock_fence: %s", memlock_last_error());
    return true;
}

static void memlock_give(void)
{
    int rc = memlock_unlock(lock);
    if (rc != MEMLOCK_OK)
        die("memlock_unlock answered %d: %s", rc, memlock_last_error());
}

/* --- the race ----------------------------------------------------------------------------- */

static const struct contender {
    const char *name;
    void (*open)(int port, uint64_t index);
    bool (*take)(uint64_t *fence); /* false when it was told to stop */
    void (*give)(void);
    void (*prepare)(void); /* before the processes are made; may be NULL */
} contenders[] = {
    {"memlock", memlock_open, memlock_take, memlock_give, NULL},
    {"polling", raw_open, polling_take, polling_give, NULL},
    {"relay", relay_open, relay_take, relay_give, relay_prepare},
    {"broken", raw_open, broken_take, broken_give, NULL},
};

static void on_term(int signal)
{
    (void)signal;
    if (client != NULL)
        memlock_client_cancel_waits(client);
}

static void race(const struct contender *it, struct process *me, uint64_t index)
{
    struct turn *log = log_of(index);
    const uint64_t mark = 1 + index;
    for (uint64_t turns = 0; !stopped(); me->turns = ++turns) {
        struct turn turn = {.asked_ns = now_ns()};
        me->asked_ns = turn.asked_ns;
        if (!it->take(&turn.fence))
            return; /* asked_ns stays: this wait had no end */
        turn.entered_ns = now_ns();
        if (stopped()) {
            it->give();
            return;
        }
        if (atomic_exchange(&board->inside, mark) != 0)
            me->clashes++;
        me->asked_ns = 0;
        if (board->hold_ns > 0)
            sleep_until(turn.entered_ns + board->hold_ns);
        if (atomic_exchange(&board->inside, 0) != mark)
            me->clashes++;
        turn.left_ns = now_ns();
        it->give();
        if (turns == board->room)
            die("the log of %" PRIu64 " turns is full", board->room);
        log[turns] = turn;
    }
}

static void run(const struct contender *it, int port, uint64_t index)
{
    struct process *me = &board->process[index];
    struct sigaction action = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    it->open(port, index);
    sigaction(SIGTERM, &action, NULL);
    const uint64_t cpu_before = cpu_ns();
    me->ready = 1;
    while (board->start_ns == 0)
        sleep_until(now_ns() + POLL_NS);
    sleep_until(board->start_ns);
    race(it, me, index);
    me->cpu_ns = cpu_ns() - cpu_before;
}

int main(int argc, char **argv)
{
    const struct contender *it = NULL;
    for (size_t i = 0; argc == 4 && i < sizeof contenders / sizeof *contenders; i++)
        if (strcmp(argv[1], contenders[i].name) == 0)
            it = &contenders[i];
    if (it == NULL)
        die("usage: worker memlock|polling|relay|broken PORT FD");
    board_map(atoi(argv[3]));
    /* None of us outlives the harness, however it ends. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (it->prepare != NULL)
        it->prepare();
    signal(SIGTERM, SIG_IGN); /* it is for the processes, and sent to the whole group */
    for (uint64_t index = 0; index < board->processes; index++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork: %s", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run(it, atoi(argv[2]), index);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        if (status != 0)
            return 1; /* the rest of us die of it */
    return 0;
}
