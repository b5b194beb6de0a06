/* A pool thread as hosts have it: it calls our library, and ends when it is joined by whoever holds Python's lock. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

static pthread_t thread;
static atomic_int called, may_end;
static uint64_t (*call)(void *);

static void *work(void *place)
{
    call(place);
    atomic_store(&called, 1);
    while (!atomic_load(&may_end))
        ;
    return NULL;
}

/* Called with Python's lock released. */
void begin(uint64_t (*function)(void *), void *place)
{
    atomic_store(&called, 0), atomic_store(&may_end, 0);
    call = function;
    pthread_create(&thread, NULL, work, place);
    while (!atomic_load(&called))
        ;
}

/* Called with Python's lock held. */
void join(void)
{
    atomic_store(&may_end, 1);
    pthread_join(thread, NULL);
}
