//! Blocking acquisition: waiters queue on the server, are woken by messages, and poll the server
//! only where messages fail.
//!
//! The target of a wait is an item that its holder releases. The queue beside it is advisory: the
//! item alone decides. A waiter is in one of these states:
//!
//! | waiter | what is true | what may move it on |
//! | --- | --- | --- |
//! | not joined | no other process knows of the waiter | the waiter, by an attempt, or by joining and inspecting in one packet |
//! | queued | its entry is in the queue, and its listener is open under the entry's id | a releaser, by waking the waiter and removing the entry; the waiter, if an inspection shows that its turn has come |
//! | woken | its entry is removed, or about to be; until the waiter has tried, it owes the next waiter a wake-up | the waiter: it acquires the target, or joins again in front |
//! | done | the waiter has acquired the target or given up; its entries are removed, or remembered as left behind | the waiter, by removing its entry; a releaser that wakes it in vain, by waking the next waiter |
//!
//! Races between these steps, and why each is harmless. Each row has a test in
//! `tests/core/waiting` or `tests/core/semaphore`, and the simulation covers all of them:
//!
//! | race | why it does no harm | test |
//! | --- | --- | --- |
//! | a release between the attempt and the join (the lost wake-up) | the inspection follows the entry in one packet: either it sees the item gone, or the later releaser sees the entry | `a_release_at_any_step_of_joining_is_not_missed` |
//! | the holder does not know of a waiter | the waiter changes the holder's record, so the holder's release fails with a version mismatch and reads the record | `a_holder_whose_grant_was_read_back_knows_of_its_waiters` |
//! | the releaser dies before it wakes a waiter | the first waiter in the queue polls once a second | `a_releaser_that_dies_before_it_wakes_is_noticed` |
//! | the first waiter is dead, on this host | its port is closed, which the sender learns at once: it wakes the next waiter | `a_dead_head_is_passed` |
//! | the first waiter is dead, on another host | a waiter that sees the item free and others before it grants them 25 to 40 ms, then acquires the item | `a_head_that_died_elsewhere_is_noticed` |
//! | one wake-up is lost, or all of them | waiters poll, and poll more often after the first missed wake-up | `lost_wake_ups_cost_time_and_nothing_else`, `without_wake_ups_a_short_wait_ends_soon_and_a_long_one_somewhat_later` |
//! | a client barges in before the woken waiter | the woken waiter joins again in front of all others | `a_woken_waiter_that_missed_is_the_next` |
//! | the waiter that was woken ahead is no longer the next one | the release reads the queue, and wakes the next waiter as well | `the_waiter_that_is_next_by_now_is_woken_as_well`, `early_wake_ups_lose_no_waiter` |
//! | a releaser writes the queue late, and the waiter that it woke has finished already | that waiter finds its own entry in the queue, and writes the queue first; if entries precede its own, it also wakes the waiter behind it | `a_holder_whose_entry_is_still_there_wakes_the_one_behind_it_too` |
//! | two releasers wake at once | entries are removed by id and by compare-and-set: one of the releasers reads the queue again. If the target is shared, the second releaser wakes another waiter | `early_wake_ups_lose_no_waiter`, `as_many_are_woken_as_there_is_room_for` |
//! | the queue is evicted or flushed | a waiter that inspects the queue does not find its entry, and joins in front | `a_lost_queue_is_built_anew` |
//! | the queue is full, or garbage | new waiters poll until there is room; the next write drops unreadable lines | `a_queue_that_is_full_takes_no_more_until_there_is_room`, `a_queue_that_is_garbage_is_cleaned_by_the_next_write` |
//! | the limit passes while the wake-up arrives | a waiter that leaves inspects the target once more afterwards, and wakes the next waiter | `a_wake_up_that_comes_too_late_is_passed_on` |
//! | the first waiter wants more permits than are available | no waiter behind it is woken, and new waiters join behind it | `a_waiter_for_many_is_not_overtaken_by_waiters_for_one` |

mod acquire;
mod driver;
pub mod entries;
mod interruption;
mod limit;
pub(crate) mod local;
pub mod policy;
mod poll;
pub(crate) mod queue;
mod self_wait;
mod wake;

pub(crate) use acquire::{Acquire, QueueReceipt};
pub(crate) use driver::{Start, run};
pub(crate) use interruption::Interruption;
pub use limit::{Cancel, Wait, Waited};
pub(crate) use poll::poll;
pub(crate) use self_wait::SelfWait;
pub(crate) use wake::{Reserve, Waker};
