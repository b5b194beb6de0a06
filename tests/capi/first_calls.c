/* Contexts whose first asynchronous call comes while other threads execute in them: usage: first_calls LIBRARY ROUNDS

   Eight threads on one context without a configuration, each with a graph of its own. Half of them execute, the others
   queue their executions, and all begin at once. Every call must be answered with 0 and every result be right. */
#define main client_main
#include "client.c"
#undef main

enum { THREADS = 8, CALLS = 5 };

static network networks[THREADS];
static pthread_barrier_t all_there;
static atomic_int wrong, told_of;

static void count_end(void *param, word status)
{
    (void)param;
    if (status)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&told_of, 1);
}

static void *call_some(void *number)
{
    size_t own = (size_t)number;
    network *n = &networks[own];
    static values all[THREADS][CALLS];
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < CALLS; i++) {
        values *v = &all[own][i];
        fill(n, v, (int)own + i);
        word code;
        if (own % 2)
            code = CALL(GRAPH_EXECUTE_ASYNC, n->graph, n->in, (uint32_t)2, n->out, (uint32_t)1, (handle)NULL, (handle)NULL,
                        count_end, NULL);
        else
            code = run(n);
        if (code) {
            fprintf(stderr, "%s call %d of thread %zu: %lu\n", own % 2 ? "asynchronous" : "synchronous", i, own,
                    (unsigned long)code);
            atomic_fetch_add(&wrong, 1);
            atomic_fetch_add(&told_of, own % 2);
        } else if (own % 2 == 0) {
            check(v->a, v->b, v->o);
        }
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    load(words[1]);
    pthread_barrier_init(&all_there, NULL, THREADS);
    for (int round = 0; round < atoi(words[2]); round++) {
        pthread_t threads[THREADS];
        char name[16];
        handle context = make_context(0);
        atomic_store(&told_of, 0);
        for (int i = 0; i < THREADS; i++) {
            snprintf(name, sizeof name, "g%d", i);
            networks[i] = build(context, name);
        }
        for (size_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, call_some, (void *)i);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        struct timespec a_while = {0, 500000};
        while (atomic_load(&told_of) < THREADS / 2 * CALLS)
            nanosleep(&a_while, NULL);
        NEED(CALL(CONTEXT_FREE, context, (handle)NULL));
    }
    unload();
    printf("%d wrong\n", atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}
