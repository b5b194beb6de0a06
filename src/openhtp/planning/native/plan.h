/* What a plan consists of, its memory, and the heap of what is going to happen. */
#ifndef OPENHTP_PLAN_H
#define OPENHTP_PLAN_H
#include <stddef.h>

#include "arbiter.h"

enum { NEVER = -1, LATEST = INT64_MAX };
enum policy { STRICT, EARLIEST_DEADLINE, FAIR };
enum outcome { DONE, TIMED_OUT };
enum status { FINISHED, GAPS_WANTED, PAUSE, TOO_LARGE, NO_MEMORY };
enum event_kind { CLIENT_ADDED, SUBMITTED, STEP_DONE, STEP_YIELDED, TIMER_FIRED };
/* At equal times requests come before calls, answers and timers, as in sched/virtual.py. */
enum order { REQUEST, CALL, ANSWER, TIMER };
enum call { FIRE, ASK, SUBMIT, GO_ON };
/* Times up to here can be added and multiplied by a few without an overflow. Python takes over beyond them. */
static const int64_t LARGEST_NS = (int64_t)1 << 60;

/* As Python fills them in; NEVER stands for None. */
struct work {
    int64_t step_ns, eviction_ns, yield_every_ns, save_ns, wake_ns, restore_ns;
};

struct client_spec {
    struct demand demand;
    int64_t core, rank, depth, deadline_ns, timeout_ns;
};

struct source_spec {
    struct work work, token_work;
    int64_t client, is_closed, is_random, start_ns, gap_ns, until_ns, count, burst, in_flight, after;
    int64_t prompt_runs, runs, tokens; /* of a language model; runs is 0 for others */
};

struct source {
    struct source_spec spec;
    struct client *client;
    int64_t left;
    int64_t *gaps; /* drawn by Python, ahead */
    int64_t gap, gap_count;
    struct source *next_follower;
};

struct outside {
    struct source *source;
    int64_t asked;
};

struct numbers {
    int64_t *items;
    int64_t count, room;
};

/* Order and sequence are one word, so that two words order the heap. */
struct entry {
    int64_t t;
    uint64_t turn;
    union {
        struct job *job;
        struct source *source;
        int64_t client;
    };
    int64_t value; /* a job's number, or when was asked */
    int8_t call, answer;
};

struct figures {
    int64_t waits_total_ns, waits_max_ns, yields, missed, not_done, busy_ns;
    int64_t worst_ns, worst_job, worst_ended_ns, tokens, writing_ns;
};

struct plan {
    struct device device;
    struct client_spec *specs;
    struct client *clients;
    struct arbiter *cores;
    struct source *sources;
    struct source **first_follower, **last_follower;
    struct figures *figures;
    struct numbers *latencies, *first_tokens;
    struct numbers log;
    int64_t client_count, source_count;
    struct actions actions;
    struct entry *heap;
    int64_t heap_count, heap_room;
    struct job *unused;
    struct piece *pieces;
    int64_t now, sequence, handled, last_job, last_token, last_arrival, end_ns;
    bool has_begun, keeps_log, is_too_large, is_out_of_memory;
};

/* ------------------------------------------------------------------ memory */

/* Memory of a fixed size belongs to the plan and goes with it. */
struct piece {
    struct piece *before;
    max_align_t contents[];
};

static void *room_for_items(struct plan *plan, int64_t count, size_t size) {
    struct piece *piece = calloc(1, sizeof *piece + count * size);
    if (!piece) {
        plan->is_out_of_memory = true;
        return NULL;
    }
    piece->before = plan->pieces;
    plan->pieces = piece;
    return piece->contents;
}

static bool grow(void **items, int64_t *room, int64_t needed, size_t size) {
    if (needed <= *room)
        return true;
    int64_t wanted = needed > 2 * *room ? needed : 2 * *room;
    void *larger = realloc(*items, wanted * size);
    if (!larger)
        return false;
    *items = larger;
    *room = wanted;
    return true;
}

static void append(struct plan *plan, struct numbers *numbers, int64_t number) {
    if (!grow((void **)&numbers->items, &numbers->room, numbers->count + 1, sizeof number)) {
        plan->is_out_of_memory = true;
        return;
    }
    numbers->items[numbers->count++] = number;
}

static void add_to(struct plan *plan, int64_t *sum, int64_t number) {
    if (__builtin_add_overflow(*sum, number, sum))
        plan->is_too_large = true;
}

enum { JOBS_IN_BLOCK = 64 };

static struct job *new_job(struct plan *plan) {
    if (!plan->unused) {
        struct job *block = room_for_items(plan, JOBS_IN_BLOCK, sizeof *block);
        for (int64_t i = 0; block && i < JOBS_IN_BLOCK; i++) {
            block[i].after = plan->unused;
            plan->unused = &block[i];
        }
        if (!block)
            return NULL;
    }
    struct job *job = plan->unused;
    plan->unused = job->after;
    memset(job, 0, sizeof *job);
    return job;
}

/* What is still in the heap for the job counts no more: neither answers nor timers. */
static void retire(struct job *job) {
    job->answer = 0;
    job->number = 0;
}

static void drop_job(struct plan *plan, struct job *job) {
    retire(job);
    job->after = plan->unused;
    plan->unused = job;
}

/* ------------------------------------------------------------------ the heap of what is going to happen */

static bool is_sooner(const struct entry *a, const struct entry *b) {
    return a->t != b->t ? a->t < b->t : a->turn < b->turn;
}

static uint64_t push(struct plan *plan, int64_t t, enum order order, struct entry entry) {
    if (t > LARGEST_NS)
        plan->is_too_large = true;
    if (!grow((void **)&plan->heap, &plan->heap_room, plan->heap_count + 1, sizeof entry)) {
        plan->is_out_of_memory = true;
        return 0;
    }
    entry.t = t;
    entry.turn = (uint64_t)order << 60 | (uint64_t)++plan->sequence;
    int64_t index = plan->heap_count++;
    while (index) {
        int64_t parent = (index - 1) / 2;
        if (!is_sooner(&entry, &plan->heap[parent]))
            break;
        plan->heap[index] = plan->heap[parent];
        index = parent;
    }
    plan->heap[index] = entry;
    return plan->sequence;
}

static struct entry pop(struct plan *plan) {
    struct entry first = plan->heap[0], last = plan->heap[--plan->heap_count];
    int64_t index = 0, count = plan->heap_count;
    for (int64_t child; (child = 2 * index + 1) < count; index = child) {
        if (child + 1 < count && is_sooner(&plan->heap[child + 1], &plan->heap[child]))
            child++;
        if (!is_sooner(&plan->heap[child], &last))
            break;
        plan->heap[index] = plan->heap[child];
    }
    plan->heap[index] = last;
    return first;
}

static void call_at(struct plan *plan, int64_t t, enum call call, struct source *source, int64_t asked) {
    struct entry entry = {.source = source, .value = asked, .call = call};
    push(plan, t > plan->now ? t : plan->now, CALL, entry);
}

static void answer_at_due(struct plan *plan, struct job *job, enum event_kind kind) {
    struct entry entry = {.job = job, .value = job->number, .answer = kind};
    job->answer = push(plan, job->due, ANSWER, entry);
}
#endif
