/* Calls that are started: their states, their answers, and whose their handles and locks are. */

#include "asynchronous.h"

#include "renewers.h"

static void a_free_lock_is_granted_and_handed_over_once(void) {
    int arg;
    memlock_lock *lock = NULL, *again, *busy;
    memlock_pending *pending = acquire("free", 0, &arg);
    CHECK(next_of(client) == pending && memlock_pending_arg(pending) == &arg);
    CHECK(!readable(client) && memlock_client_next_ended(client) == NULL);
    ANSWERS(MEMLOCK_OK, memlock_pending_poll(pending));
    ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(pending, &lock));
    CHECK(lock != NULL && *memlock_last_error() == '\0');
    again = lock;
    ANSWERS(MEMLOCK_INVALID, memlock_pending_take_lock(pending, &again));
    SAYS("taken before");
    CHECK(again == NULL);
    ANSWERS(MEMLOCK_OK, memlock_pending_poll(pending));
    ANSWERS(MEMLOCK_OK, memlock_pending_cancel(pending));
    memlock_pending_close(pending);
    CHECK(memlock_lock_is_held(lock) == 1);
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock(other, "free", 30000, 0, &busy));
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 40000));
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock, &arg, &pending));
    CHECK(memlock_pending_arg(pending) == &arg);
    ends_with(MEMLOCK_OK, pending);
    becomes_free("free");
}

static void a_call_in_progress_is_pending(void) {
    memlock_lock *held = lock_of(other, "held"), *lock = held;
    memlock_pending *pending = acquire("held", -1, NULL);
    QUEUE_BECOMES(1, "held");
    ANSWERS(MEMLOCK_PENDING, memlock_pending_poll(pending));
    SAYS("not ended");
    CHECK(strcmp(memlock_last_error(), memlock_describe(MEMLOCK_PENDING)) == 0);
    ANSWERS(MEMLOCK_PENDING, memlock_pending_take_lock(pending, &lock));
    CHECK(lock == NULL && !readable(client) && memlock_client_next_ended(client) == NULL);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    release(granted(pending));
    becomes_free("held");
}

static void a_refusal_has_the_answer_and_the_message_of_the_blocking_call(void) {
    char message[1024];
    memlock_lock *held = lock_of(other, "refused"), *lock;
    memlock_pending *pending = acquire("refused", 0, NULL);
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock(client, "refused", 30000, 0, &lock));
    snprintf(message, sizeof message, "%s", memlock_last_error());
    CHECK(next_of(client) == pending);
    lock = held;
    ANSWERS(MEMLOCK_BUSY, memlock_pending_take_lock(pending, &lock));
    CHECK(lock == NULL && strcmp(message, memlock_last_error()) == 0);
    memlock_pending_close(pending);
    pending = acquire("refused", 50, NULL);
    CHECK(next_of(client) == pending);
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_pending_poll(pending));
    SAYS("50 ms");
    SAYS("\"refused\"");
    SAYS("127.0.0.1");
    memlock_pending_close(pending);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    becomes_free("refused");
}

static void a_lost_lock_is_found_lost_by_its_release(void) {
    memlock_pending *pending;
    memlock_lock *lock = granted(acquire("lost", -1, NULL));
    CHECK(plain_delete("lock:lost"));
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, &pending));
    CHECK(next_of(client) == pending);
    ANSWERS(MEMLOCK_LOST, memlock_pending_poll(pending));
    SAYS("\"lost\"");
    memlock_pending_close(pending);
}

static void a_release_needs_nobody_to_collect_it(void) {
    memlock_pending *pending;
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock_of(client, "let-go"), NULL, NULL));
    becomes_free("let-go");
    CHECK(!readable(client));
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock_of(client, "closed"), NULL, &pending));
    memlock_pending_close(pending);
    becomes_free("closed");
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock_of(client, "cancelled"), NULL, &pending));
    ANSWERS(MEMLOCK_OK, memlock_pending_cancel(pending));
    ends_with(MEMLOCK_OK, pending);
    becomes_free("cancelled");
    CHECK(!readable(client) && memlock_client_next_ended(client) == NULL);
}

static void permits_are_granted_together(void) {
    memlock_semaphore *semaphore;
    memlock_permit *permit = NULL, *more;
    memlock_lock *lock;
    memlock_pending *first, *second;
    const memlock_request three = {.permits = 3, .priority = 0, .strict = 0}, none = {0, 0, 0};
    uint32_t count;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "permits", 3, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_start(semaphore, NULL, 0, &count, &first));
    CHECK(memlock_pending_arg(first) == &count && next_of(client) == first);
    ANSWERS(MEMLOCK_INVALID, memlock_pending_take_lock(first, &lock));
    SAYS("memlock_pending_take_permit()");
    ANSWERS(MEMLOCK_OK, memlock_pending_take_permit(first, &permit));
    ANSWERS(MEMLOCK_INVALID, memlock_pending_take_permit(first, &more));
    memlock_pending_close(first);
    ANSWERS(MEMLOCK_OK, memlock_permit_count(permit, &count));
    CHECK(count == 1 && more == NULL);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_start(semaphore, &three, 0, NULL, &first));
    ends_with(MEMLOCK_BUSY, first);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_start(semaphore, &none, 0, NULL, &first));
    ends_with(MEMLOCK_INVALID, first);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_start(semaphore, &three, -1, NULL, &first));
    QUEUE_AT_BECOMES(1, "semaphore:permits");
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_OK, memlock_permit_release_start(permit, NULL, &second));
    memlock_pending *ended[2] = {next_of(client), next_of(client)};
    CHECK((ended[0] == first && ended[1] == second) || (ended[0] == second && ended[1] == first));
    ANSWERS(MEMLOCK_OK, memlock_pending_poll(second));
    ANSWERS(MEMLOCK_OK, memlock_pending_take_permit(first, &permit));
    memlock_pending_close(first);
    memlock_pending_close(second);
    ANSWERS(MEMLOCK_OK, memlock_permit_count(permit, &count));
    CHECK(count == 3);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
}

static void the_descriptor_is_readable_until_the_last_call_is_handed_out_or_closed(void) {
    enum { CALLS = 5 };
    const int fd = memlock_client_event_fd(client);
    memlock_pending *calls[CALLS];
    CHECK(!readable(client));
    for (int i = 0; i < CALLS; i++) {
        char name[32];
        snprintf(name, sizeof name, "readable-%d", i);
        calls[i] = acquire(name, 0, NULL);
    }
    for (int i = 0; i < CALLS; i++) EVENTUALLY(memlock_pending_poll(calls[i]) == MEMLOCK_OK);
    EVENTUALLY(readable(client));
    memlock_pending *first = memlock_client_next_ended(client);
    memlock_pending *second = memlock_client_next_ended(client);
    CHECK(first != NULL && second != NULL && first != second && readable(client));
    for (int i = 0; i < CALLS; i++) memlock_pending_close(calls[i]);
    CHECK(!readable(client) && memlock_client_next_ended(client) == NULL);
    CHECK(memlock_client_event_fd(client) == fd);
    for (int i = 0; i < CALLS; i++) {
        char name[32];
        snprintf(name, sizeof name, "readable-%d", i);
        becomes_free(name);
    }
}

static _Atomic int notices;
static memlock_lock *noticed;

static void note(int event, int64_t left_ms, void *arg) {
    (void)left_ms;
    notices++;
    /* From its own callback: the handle is taken over, and freed when the callback has returned. */
    if (arg != NULL && event != MEMLOCK_LEASE_AT_RISK) {
        ANSWERS(MEMLOCK_OK, memlock_release_start(noticed, NULL, arg));
    }
}

static void a_renewed_lock_is_released_and_its_callback_never_called_again(void) {
    memlock_pending *pending;
    memlock_lock *lock = granted(acquire("renewed", -1, NULL));
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, note, NULL));
    release(lock);
    becomes_free("renewed");
    EVENTUALLY(renewers() == 0);
    CHECK(notices == 0);
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(client, "noticed", 3000, -1, NULL, &pending));
    noticed = granted(pending);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(noticed, -1, note, &pending));
    CHECK(plain_delete("lock:noticed"));
    memlock_pending *ended = next_of(client);
    CHECK(ended == pending && notices >= 1);
    ANSWERS(MEMLOCK_LOST, memlock_pending_poll(ended));
    memlock_pending_close(ended);
    becomes_free("noticed");
}

static void clients_have_calls_of_their_own(void) {
    memlock_pending *of_other;
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(other, "others", 30000, 0, NULL, &of_other));
    EVENTUALLY(memlock_pending_poll(of_other) == MEMLOCK_OK);
    CHECK(!readable(client) && memlock_client_next_ended(client) == NULL);
    CHECK(memlock_client_event_fd(client) != memlock_client_event_fd(other));
    CHECK(next_of(other) == of_other);
    memlock_pending_close(of_other);
    becomes_free("others");
}

int main(void) {
    open_both();
    RUN(a_free_lock_is_granted_and_handed_over_once);
    RUN(a_call_in_progress_is_pending);
    RUN(a_refusal_has_the_answer_and_the_message_of_the_blocking_call);
    RUN(a_lost_lock_is_found_lost_by_its_release);
    RUN(a_release_needs_nobody_to_collect_it);
    RUN(permits_are_granted_together);
    RUN(the_descriptor_is_readable_until_the_last_call_is_handed_out_or_closed);
    RUN(a_renewed_lock_is_released_and_its_callback_never_called_again);
    RUN(clients_have_calls_of_their_own);
    memlock_client_close(client);
    memlock_client_close(other);
    return 0;
}
