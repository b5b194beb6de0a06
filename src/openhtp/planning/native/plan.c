/* A whole plan on the virtual clock: openhtp/sched/scheduler.py and virtual.py, and the sources and counts of
 * openhtp/planning, for scenarios in which nobody votes on clocks and no graph is switched. The Python code decides
 * what is right. This is the same, statement by statement, and tests compare the two event by event.
 *
 * Nothing here knows Python; planning/native.py does. A plan is run in pieces: it comes back when random gaps are used
 * up, when it has handled as many events as it was allowed, and when it is done. */
#include "plan.h"

#define API __attribute__((visibility("default")))

/* ------------------------------------------------------------------ the scheduler */

static struct rank rank_of(const struct plan *plan, const struct client *client, int64_t t, int64_t deadline_at) {
    int64_t own = client->spec->rank;
    if (plan->device.policy == EARLIEST_DEADLINE)
        return (struct rank){deadline_at == NEVER ? LATEST : deadline_at, own};
    return (struct rank){plan->device.policy == FAIR ? t + own : own, 0};
}

static void remove_from_queue(struct job *job) {
    struct client *client = job->client;
    *(job->before ? &job->before->after : &client->first) = job->after;
    *(job->after ? &job->after->before : &client->last) = job->before;
}

static void end_job(struct plan *plan, struct job *job, enum outcome outcome) {
    struct client *client = job->client;
    struct arbiter *core = client->core;
    struct actions *actions = &plan->actions;
    enum state state = job->state;
    job->state = ENDED;
    job->token = 0;
    if (state == QUEUED) {
        remove_from_queue(job);
        act(actions, FINISH, job, outcome);
        return;
    }
    if (job->holds)
        release(core, job, actions, false);
    else
        forget(core, job);
    act(actions, FINISH, job, outcome);
    remove_from_queue(job);
    if (client->first)
        ask_for_core(client->first, actions);
    else if (core->waits)
        settle(core, actions);
}

static void on_submitted(struct plan *plan, struct job *job, int64_t timeout_at, int64_t deadline_at) {
    struct client *client = job->client;
    job->sequence = ++plan->last_arrival;
    job->rank = rank_of(plan, client, plan->now, deadline_at);
    job->state = QUEUED;
    job->ending = NEVER;
    job->before = client->last;
    job->after = NULL;
    *(client->last ? &client->last->after : &client->first) = job;
    client->last = job;
    if (timeout_at != NEVER)
        act(&plan->actions, ARM_TIMER, job, timeout_at);
    if (client->first == job)
        ask_for_core(job, &plan->actions);
}

static void on_answer(struct plan *plan, struct job *job, enum event_kind kind) {
    if (job->ending != NEVER) {
        end_job(plan, job, job->ending);
    } else if (kind == STEP_DONE) {
        end_job(plan, job, DONE);
    } else {
        job->token = 0;
        release(job->client->core, job, &plan->actions, true);
        settle(job->client->core, &plan->actions);
    }
}

static void on_timer(struct plan *plan, struct job *job, int64_t number) {
    if (job->number != number)
        return; /* it is over, and its memory may be another job's by now */
    if (job->state != RUNNING && job->state != YIELDING)
        end_job(plan, job, TIMED_OUT);
    else if (job->ending == NEVER)
        job->ending = TIMED_OUT;
}

/* ------------------------------------------------------------------ the sources */

static bool takes_part_at(struct source *source, int64_t t) {
    if (source->spec.until_ns != NEVER && t >= source->spec.until_ns)
        return false;
    return source->left == NEVER || (source->left > 0 && source->left--);
}

static void request_at(struct plan *plan, struct source *source, int64_t t) {
    if (takes_part_at(source, t))
        call_at(plan, t, ASK, source, 0);
}

static int64_t gap_of(struct source *source) {
    return source->spec.is_random ? source->gaps[source->gap++] : source->spec.gap_ns;
}

static void begin(struct plan *plan) {
    for (int64_t client = 0; client < plan->client_count; client++)
        push(plan, 0, REQUEST, (struct entry){.client = client});
    for (int64_t i = 0; i < plan->source_count; i++) {
        struct source *source = &plan->sources[i];
        const struct source_spec *spec = &source->spec;
        if (spec->after != NEVER) {
            struct source **last = &plan->last_follower[spec->after];
            *(*last ? &(*last)->next_follower : &plan->first_follower[spec->after]) = source;
            *last = source;
        } else if (spec->is_closed) {
            for (int64_t n = 0; n < spec->in_flight; n++)
                request_at(plan, source, spec->start_ns);
        } else {
            int64_t first = spec->start_ns + (spec->is_random ? gap_of(source) : 0);
            if (takes_part_at(source, first))
                call_at(plan, first, FIRE, source, 0);
        }
    }
    plan->has_begun = true;
}

static struct job *submit(struct plan *plan, struct source *source, int64_t asked) {
    struct job *job = new_job(plan);
    if (!job)
        return NULL;
    source->client->in_queue++;
    job->number = ++plan->last_job;
    job->client = source->client;
    job->work = &source->spec.work;
    job->granted = NEVER;
    job->source = source;
    job->asked = job->began = asked;
    return job;
}

static struct job *ask(struct plan *plan, struct source *source) {
    struct client *client = source->client;
    if (client->in_queue < client->spec->depth)
        return submit(plan, source, plan->now);
    int64_t end = client->backlog_first + client->backlog_count;
    if (!grow((void **)&client->backlog, &client->backlog_room, end + 1, sizeof *client->backlog))
        plan->is_out_of_memory = true;
    else
        client->backlog[end] = (struct outside){source, plan->now};
    client->backlog_count++;
    return NULL;
}

static struct outside next_outside(struct client *client) {
    struct outside next = client->backlog[client->backlog_first++];
    client->backlog_count--;
    if (client->backlog_first >= 64 && client->backlog_first > client->backlog_count) {
        memmove(client->backlog, client->backlog + client->backlog_first, client->backlog_count * sizeof next);
        client->backlog_first = 0;
    }
    return next;
}

static struct job *fire(struct plan *plan, struct source *source) {
    int64_t gap = gap_of(source);
    if (gap && takes_part_at(source, plan->now + gap))
        call_at(plan, plan->now + gap, FIRE, source, 0);
    for (int64_t n = 1; n < source->spec.burst; n++)
        call_at(plan, plan->now, ASK, source, 0);
    return ask(plan, source);
}

/* The next run of a conversation. */
static struct job *go_on(struct plan *plan, struct job *before) {
    struct job *job = new_job(plan);
    if (!job)
        return NULL;
    struct source *source = before->source;
    job->number = ++plan->last_job;
    job->client = source->client;
    job->run = before->run + 1;
    job->work = job->run < source->spec.prompt_runs ? &source->spec.work : &source->spec.token_work;
    job->granted = NEVER;
    job->source = source;
    job->asked = plan->now;
    job->began = before->began;
    job->first_token = before->first_token;
    drop_job(plan, before);
    return job;
}

/* ------------------------------------------------------------------ what ended */

static void count(struct plan *plan, struct job *job, enum outcome outcome) {
    int64_t t = plan->now, latency = t - job->asked, number = job->client - plan->clients;
    struct figures *figures = &plan->figures[number];
    plan->end_ns = t;
    add_to(plan, &figures->busy_ns, job->held_ns);
    figures->yields += job->yields;
    if (outcome == DONE) {
        if (latency > figures->worst_ns) {
            figures->worst_ns = latency;
            figures->worst_job = job->number;
            figures->worst_ended_ns = t;
        }
        append(plan, &plan->latencies[number], latency);
        int64_t wait = latency - job->held_ns;
        add_to(plan, &figures->waits_total_ns, wait);
        if (wait > figures->waits_max_ns)
            figures->waits_max_ns = wait;
    } else {
        figures->not_done++;
    }
    int64_t deadline = job->client->spec->deadline_ns;
    if (deadline != NEVER && (latency > deadline || outcome != DONE))
        figures->missed++;
    const struct source_spec *spec = &job->source->spec;
    if (!spec->runs)
        return;
    if (job->run == spec->prompt_runs - 1) {
        job->first_token = t;
        append(plan, &plan->first_tokens[number], t - job->began);
    }
    if (job->run == spec->runs - 1 && job->first_token) {
        figures->tokens += spec->tokens - 1;
        add_to(plan, &figures->writing_ns, t - job->first_token);
    }
}

static void finished(struct plan *plan, struct job *job, enum outcome outcome) {
    struct source *source = job->source;
    struct client *client = job->client;
    count(plan, job, outcome);
    if (source->spec.runs && job->run != source->spec.runs - 1) {
        retire(job); /* the next run is told by it how the conversation goes on */
        push(plan, plan->now, CALL, (struct entry){.job = job, .call = GO_ON});
        return;
    }
    drop_job(plan, job);
    client->in_queue--;
    if (client->backlog_count) {
        struct outside next = next_outside(client);
        call_at(plan, plan->now, SUBMIT, next.source, next.asked);
    }
    if (source->spec.is_closed)
        request_at(plan, source, plan->now + source->spec.gap_ns);
    struct source *follower = plan->first_follower[client - plan->clients];
    for (; follower; follower = follower->next_follower)
        request_at(plan, follower, plan->now + follower->spec.gap_ns);
}

/* ------------------------------------------------------------------ the modelled engine */

static void start_run(struct plan *plan, struct job *job) {
    if (job->granted == NEVER)
        job->granted = plan->now;
    job->started = plan->now;
    if (job->resumes) {
        job->started += job->work->restore_ns;
        job->resumes = job->stops = false;
    }
    job->due = job->started + (job->left_ns ? job->left_ns : job->work->step_ns);
    job->left_ns = 0;
    answer_at_due(plan, job, STEP_DONE);
}

static void ask_run_to_yield(struct plan *plan, struct job *job) {
    const struct work *work = job->work;
    int64_t stop, free_at, now = plan->now;
    job->resumes = true;
    if (now > job->due)
        return;
    if (work->eviction_ns != NEVER) {
        stop = free_at = now + work->eviction_ns;
    } else {
        int64_t every = work->yield_every_ns, since = now > job->started ? now - job->started : 0;
        stop = job->started + (since + every - 1) / every * every;
        free_at = stop + work->save_ns + work->wake_ns;
    }
    if (stop >= job->due)
        return;
    job->left_ns = job->due - (stop > job->started ? stop : job->started);
    job->due = free_at;
    job->stops = true;
    answer_at_due(plan, job, STEP_YIELDED);
}

static void do_actions(struct plan *plan) {
    for (int64_t i = 0; i < plan->actions.count; i++) {
        struct action *action = &plan->actions.items[i];
        struct job *job = action->job;
        switch (action->kind) {
        case START:
            start_run(plan, job);
            break;
        case RELEASE:
            job->held_ns += plan->now - job->granted;
            job->granted = NEVER;
            job->yields += action->value;
            break;
        case GRANT:
            break;
        case FINISH:
            finished(plan, job, action->value);
            break;
        case ASK_YIELD:
            ask_run_to_yield(plan, job);
            break;
        case ARM_TIMER: {
            int64_t at = action->value > plan->now ? action->value : plan->now;
            push(plan, at, TIMER, (struct entry){.job = job, .value = job->number});
        }
        }
    }
}

/* An event in the log: kind, time, three numbers and how many actions follow. An action: kind, job and five numbers. */
static void note(struct plan *plan, enum event_kind kind, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t words[] = {kind, plan->now, a, b, c, d, plan->actions.count};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        append(plan, &plan->log, words[i]);
    for (int64_t i = 0; i < plan->actions.count; i++) {
        const struct action *action = &plan->actions.items[i];
        bool grants = action->kind == GRANT;
        append(plan, &plan->log, action->kind);
        append(plan, &plan->log, action->job->number);
        append(plan, &plan->log, grants ? action->job->client->core->number : action->value);
        append(plan, &plan->log, grants ? (int64_t)action->share.hmx : 0);
        append(plan, &plan->log, grants ? (int64_t)action->share.hvx : 0);
        append(plan, &plan->log, grants ? action->share.start : 0);
        append(plan, &plan->log, grants ? action->share.end - action->share.start : 0);
    }
}

static void deliver_call(struct plan *plan, const struct entry *entry) {
    struct job *job;
    switch ((enum call)entry->call) {
    case FIRE:
        job = fire(plan, entry->source);
        break;
    case ASK:
        job = ask(plan, entry->source);
        break;
    case SUBMIT:
        job = submit(plan, entry->source, entry->value);
        break;
    default:
        job = go_on(plan, entry->job);
    }
    if (!job)
        return;
    const struct client_spec *spec = job->client->spec;
    int64_t timeout_at = spec->timeout_ns == NEVER ? NEVER : job->asked + spec->timeout_ns;
    int64_t deadline_at = spec->deadline_ns == NEVER ? NEVER : job->asked + spec->deadline_ns;
    on_submitted(plan, job, timeout_at, deadline_at);
    plan->handled++;
    if (plan->keeps_log)
        note(plan, SUBMITTED, job->number, job->client - plan->clients, timeout_at, deadline_at);
    do_actions(plan);
}

static void deliver(struct plan *plan, const struct entry *entry) {
    enum order order = entry->turn >> 60;
    struct job *job = entry->job;
    if (order == ANSWER && job->answer != (int64_t)(entry->turn << 4 >> 4))
        return; /* replaced by an earlier answer */
    plan->now = entry->t;
    plan->actions.count = 0;
    if (order == CALL) {
        deliver_call(plan, entry);
        return;
    }
    plan->handled++;
    if (order == REQUEST) {
        if (plan->keeps_log)
            note(plan, CLIENT_ADDED, entry->client, 0, 0, 0);
        return;
    }
    int64_t token = job->token;
    if (order == ANSWER)
        on_answer(plan, job, entry->answer);
    else
        on_timer(plan, job, entry->value);
    if (plan->keeps_log)
        note(plan, order == ANSWER ? (enum event_kind)entry->answer : TIMER_FIRED, entry->value, token, 0, 0);
    do_actions(plan);
}

static bool lacks_gaps(const struct source *source) {
    return source->spec.is_random && source->gap >= source->gap_count;
}

/* ------------------------------------------------------------------ what Python calls */

/* A digest of the sources of this library, by which Python sees whether it has to be compiled again. */
#ifndef OPENHTP_SOURCES
#define OPENHTP_SOURCES ""
#endif
API const char openhtp_plan_sources[] = OPENHTP_SOURCES;

API void openhtp_plan_free(struct plan *plan) {
    if (!plan)
        return;
    for (int64_t i = 0; i < plan->client_count; i++) {
        free(plan->clients[i].backlog);
        free(plan->latencies[i].items);
        free(plan->first_tokens[i].items);
    }
    for (int64_t i = 0; i < plan->source_count; i++)
        free(plan->sources[i].gaps);
    while (plan->pieces) {
        struct piece *before = plan->pieces->before;
        free(plan->pieces);
        plan->pieces = before;
    }
    free(plan->heap);
    free(plan->log.items);
    free(plan);
}

static void make_cores(struct plan *plan, int64_t clients) {
    plan->cores = room_for_items(plan, plan->device.cores, sizeof *plan->cores);
    for (int64_t i = 0; plan->cores && i < plan->device.cores; i++) {
        struct arbiter *core = &plan->cores[i];
        core->number = i;
        core->device = &plan->device;
        core->next_token = &plan->last_token;
        core->claims = room_for_items(plan, clients, sizeof *core->claims);
        core->others = room_for_items(plan, 2 * clients, sizeof *core->others);
        struct job ***lists[] = {&core->holders, &core->waiting, &core->blocked,
                                 &core->staying, &core->lower,   &core->victims};
        for (size_t list = 0; list < sizeof lists / sizeof *lists; list++)
            *lists[list] = room_for_items(plan, clients, sizeof(struct job *));
    }
}

static void make_rooms(struct plan *plan, int64_t clients, int64_t sources) {
    make_cores(plan, clients);
    plan->specs = room_for_items(plan, clients, sizeof *plan->specs);
    plan->clients = room_for_items(plan, clients, sizeof *plan->clients);
    plan->figures = room_for_items(plan, clients, sizeof *plan->figures);
    plan->latencies = room_for_items(plan, clients, sizeof *plan->latencies);
    plan->first_tokens = room_for_items(plan, clients, sizeof *plan->first_tokens);
    plan->first_follower = room_for_items(plan, clients, sizeof *plan->first_follower);
    plan->last_follower = room_for_items(plan, clients, sizeof *plan->last_follower);
    plan->sources = room_for_items(plan, sources, sizeof *plan->sources);
    /* Of one event: an end, and of every client at most a start and a request to yield. */
    plan->actions.items = room_for_items(plan, 4 + 3 * clients, sizeof *plan->actions.items);
}

/* The sizes of the structures that Python fills in and reads, by which it knows that they are these. */
API void openhtp_plan_layout(int64_t *sizes) {
    sizes[0] = sizeof(struct device);
    sizes[1] = sizeof(struct client_spec);
    sizes[2] = sizeof(struct source_spec);
    sizes[3] = sizeof(struct figures);
}

/* Writes the plan to where the caller keeps it, NULL if there is no memory: a Ctrl-C comes between a call and the
   assignment of its result, which would then be nobody's. */
API void openhtp_plan_make(
    struct plan **kept, const struct device *device, const struct client_spec *clients, int64_t client_count,
    const struct source_spec *sources, int64_t source_count, int keeps_log
) {
    struct plan *plan = calloc(1, sizeof *plan);
    *kept = plan;
    if (!plan)
        return;
    plan->device = *device;
    plan->keeps_log = keeps_log;
    make_rooms(plan, client_count, source_count);
    if (plan->is_out_of_memory) {
        openhtp_plan_free(plan);
        *kept = NULL;
        return;
    }
    plan->client_count = client_count;
    plan->source_count = source_count;
    for (int64_t i = 0; i < client_count; i++) {
        struct client *client = &plan->clients[i];
        plan->specs[i] = clients[i];
        client->spec = &plan->specs[i];
        client->demand = clients[i].demand;
        client->core = &plan->cores[clients[i].core];
        place(NULL, 0, &client->demand, &plan->device, &client->alone);
        plan->figures[i].worst_ns = NEVER;
    }
    for (int64_t i = 0; i < source_count; i++) {
        plan->sources[i].spec = sources[i];
        plan->sources[i].left = sources[i].count;
        plan->sources[i].client = &plan->clients[sources[i].client];
    }
}

/* Gives a random source its next gaps; those before are used up. */
API int openhtp_plan_give_gaps(struct plan *plan, int64_t number, const int64_t *gaps, int64_t count) {
    struct source *source = &plan->sources[number];
    int64_t *copy = malloc(count * sizeof *gaps);
    if (!copy)
        return NO_MEMORY;
    free(source->gaps);
    source->gaps = memcpy(copy, gaps, count * sizeof *gaps);
    source->gap = 0;
    source->gap_count = count;
    return FINISHED;
}

/* Goes on until ``until`` is past, at most ``most`` turns of the heap. ``source`` is the one whose gaps are wanted. */
API int openhtp_plan_run(struct plan *plan, int64_t until, int64_t most, int64_t *source) {
    for (*source = 0; !plan->has_begun && *source < plan->source_count; ++*source)
        if (lacks_gaps(&plan->sources[*source]))
            return GAPS_WANTED;
    if (!plan->has_begun)
        begin(plan);
    for (; plan->heap_count && plan->heap[0].t <= until; most--) {
        const struct entry *next = &plan->heap[0];
        if (next->turn >> 60 == CALL && next->call == FIRE && lacks_gaps(next->source)) {
            *source = next->source - plan->sources;
            return GAPS_WANTED;
        }
        if (!most)
            return PAUSE;
        struct entry entry = pop(plan);
        deliver(plan, &entry);
        if (plan->is_too_large || plan->is_out_of_memory)
            return plan->is_too_large ? TOO_LARGE : NO_MEMORY;
    }
    if (until != LATEST && until > plan->now)
        plan->now = until;
    return FINISHED;
}

API void openhtp_plan_totals(const struct plan *plan, int64_t *handled, int64_t *end_ns) {
    *handled = plan->handled;
    *end_ns = plan->end_ns;
}

API const struct figures *openhtp_plan_figures(const struct plan *plan, int64_t client) {
    return &plan->figures[client];
}

API const int64_t *openhtp_plan_latencies(const struct plan *plan, int64_t client, int64_t *count) {
    *count = plan->latencies[client].count;
    return plan->latencies[client].items;
}

API const int64_t *openhtp_plan_first_tokens(const struct plan *plan, int64_t client, int64_t *count) {
    *count = plan->first_tokens[client].count;
    return plan->first_tokens[client].items;
}

API const int64_t *openhtp_plan_log(const struct plan *plan, int64_t *count) {
    *count = plan->log.count;
    return plan->log.items;
}
