/* Notifications on their way to clients in C: a queue, and the loop of the thread that calls their functions.

   The thread is one of Python's, and outside the interpreter while it waits and while a client's function runs: it
   goes back only if Python has something to do. So the end of an execution costs its caller no interpreter lock.
   Whoever puts a notice holds that lock, so one at a time does; one thread takes them. */
#include <errno.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { PYTHONS_TURN, AWAITED, SLOW };
enum { SLOW_CALLBACK_NS = 10000000, NICENESS_OF_CALLER = 99 };
#define NOBODY_WAITS UINT64_MAX

typedef void (*notify_function)(void *param, word status);

struct notice {
    struct notice *next;
    notify_function function; /* NULL: one of Python's, which keeps it */
    void *param;
    word status;
    int niceness;
};

struct delivery {
    _Atomic word returned, returned_ns; /* how many clients' functions have, and when the last one did; read by Python */
    word slow_function, slow_ns;        /* told with SLOW */
    _Atomic word expected_ns;           /* when the next end is expected, by the monotonic clock; 0: unknown; by Python */
    _Atomic word awaited;               /* how many have returned when somebody is to be woken */
    atomic_int dropping;
    word count;
    unsigned rests, failures;           /* how often it only sleeps, as it looked in vain so many times in a row */
    sem_t waiting;
    struct notice *taken, *last; /* the last one taken out is still there, for the next to hang on */
};

static word monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (word)now.tv_sec * 1000000000 + (word)now.tv_nsec;
}

static struct delivery *make_delivery(void)
{
    struct delivery *made = calloc(1, sizeof *made);
    struct notice *empty = calloc(1, sizeof *empty);
    if (!made || !empty || sem_init(&made->waiting, 0, 0)) {
        free(made);
        free(empty);
        return NULL;
    }
    made->taken = made->last = empty;
    made->awaited = NOBODY_WAITS;
    return made;
}

static void free_delivery(struct delivery *d)
{
    for (struct notice *next = d->taken; next;) {
        struct notice *one = next;
        next = one->next;
        free(one);
    }
    sem_destroy(&d->waiting);
    free(d);
}

/* The number of the notice among those of clients; 0 for one of Python's, and if there is no memory. */
static word put_notice(struct delivery *d, notify_function function, void *param, word status, int niceness)
{
    struct notice *new = malloc(sizeof *new);
    if (!new)
        return 0;
    *new = (struct notice){NULL, function, param, status,
                           niceness == NICENESS_OF_CALLER ? getpriority(PRIO_PROCESS, 0) : niceness};
    d->last->next = new;
    d->last = new;
    word number = function ? ++d->count : 0;
    atomic_store(&d->expected_ns, 0); /* here it is */
    sem_post(&d->waiting);
    return number;
}

/* How long before and after the time at which a notice is expected the thread looks for it. Two looks lie less than a
   microsecond apart, and so far only if somebody else had the processor. */
enum { EARLY_NS = 50000, LATE_NS = 50000, TAKEN_NS = 25000, FEWEST_RESTS = 2, AFTER_LOSS = 8, MOST_FAILURES = 10,
       TIMER_SLACK_NS = 1000 };

/* Sleep until shortly before a notice is expected, and look for it then: waking a thread takes whoever wakes it longer
   than a callback runs, and the client waits for both. Answers whether the notice has come. After looking in vain, or
   where somebody else needs the processor, it just sleeps the next times, twice as often every time. */
static int look_for_notice(struct delivery *d)
{
    word expected_ns = atomic_exchange(&d->expected_ns, 0), now_ns = monotonic_ns(), looked_ns;
    if (!expected_ns || now_ns > expected_ns + LATE_NS || (d->rests && d->rests--))
        return 0;
    if (expected_ns > now_ns + EARLY_NS) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        word ends_ns = (word)until.tv_nsec + expected_ns - EARLY_NS - now_ns;
        until.tv_sec += (time_t)(ends_ns / 1000000000);
        until.tv_nsec = (long)(ends_ns % 1000000000);
        int missing;
        while ((missing = sem_timedwait(&d->waiting, &until)) && errno != ETIMEDOUT)
            ; /* a signal came */
        if (!missing)
            return 1;
    }
    for (now_ns = looked_ns = monotonic_ns(); now_ns < expected_ns + LATE_NS && now_ns - looked_ns < TAKEN_NS;) {
        if (!sem_trywait(&d->waiting)) {
            d->failures = 0;
            return 1;
        }
        looked_ns = now_ns;
        now_ns = monotonic_ns();
    }
    d->rests = (now_ns - looked_ns < TAKEN_NS ? FEWEST_RESTS : AFTER_LOSS) << d->failures;
    d->failures += d->failures < MOST_FAILURES;
    return 0;
}

/* Call clients' functions until Python has to do something, and say what. */
static int deliver(struct delivery *d)
{
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    for (;;) {
        if (!look_for_notice(d))
            while (sem_wait(&d->waiting))
                ; /* a signal came */
        struct notice *next = d->taken->next;
        free(d->taken);
        d->taken = next;
        if (!next->function)
            return PYTHONS_TURN;
        word began_ns = monotonic_ns();
        if (!atomic_load_explicit(&d->dropping, memory_order_relaxed)) {
            if (getpriority(PRIO_PROCESS, 0) != next->niceness)
                setpriority(PRIO_PROCESS, 0, next->niceness); /* without the privilege it stays as it is */
            next->function(next->param, next->status);
        }
        word ended_ns = monotonic_ns();
        atomic_store(&d->returned_ns, ended_ns);
        word returned = atomic_fetch_add(&d->returned, 1) + 1;
        if (ended_ns - began_ns > SLOW_CALLBACK_NS) {
            d->slow_function = W(next->function), d->slow_ns = ended_ns - began_ns;
            return SLOW;
        }
        if (returned >= atomic_load(&d->awaited)) {
            atomic_store(&d->awaited, NOBODY_WAITS);
            return AWAITED;
        }
    }
}

/* Have ``deliver`` say when so many functions have returned. Answers how many have. */
static word await_returns(struct delivery *d, word number)
{
    if (number < atomic_load(&d->awaited))
        atomic_store(&d->awaited, number);
    return atomic_load(&d->returned);
}

/* Leave out what was not begun; answers how many clients' functions that is. */
static word drop_notices(struct delivery *d)
{
    atomic_store(&d->dropping, 1);
    word left = d->count - atomic_load(&d->returned);
    return left ? left - 1 : 0; /* one of them is being called */
}

static void *const delivery_functions[] = {make_delivery, free_delivery, put_notice,
                                           deliver,       await_returns, drop_notices};
