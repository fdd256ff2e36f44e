//! Waiting: in a queue, woken by messages, and asking the server only where these fail.
//!
//! The target of a wait is an item that its holder releases. Beside it is the queue, which is only
//! advice: the item alone decides. A waiter is in one of these states:
//!
//! | a waiter | what is true | what may move it on |
//! | --- | --- | --- |
//! | has not joined | no other process knows of it | itself, by trying, or by joining and inspecting in one packet |
//! | in the queue | its entry is in the item, and its listener is open under that entry's id | a releaser, by waking it and removing its entry; itself, by an inspection that finds its turn come |
//! | woken | its line is off, or about to be; it owes the next one a wake-up until it has tried | itself: it takes what it waits for, or joins again in front |
//! | out | it has acquired the target, or given up; no entry of it is left, or it is remembered as left behind | itself, by removing its entry; a releaser that wakes it in vain, by waking the next |
//!
//! What can go wrong between them, and what then holds. Each row has its test in `tests/waiting`,
//! and the simulation walks through all of them:
//!
//! | race | why it does no harm | test |
//! | --- | --- | --- |
//! | a release between the attempt and the join (the lost wake-up) | the inspection follows the entry in one packet: either it sees the item gone, or the later releaser sees the entry | `a_release_at_any_step_of_joining_is_not_missed` |
//! | the holder does not know of a waiter | the waiter changes the holder's record, so that its release is answered "changed" and it reads why | `a_lock_that_nobody_wants_costs_two_commands`, `a_holder_whose_grant_was_read_back_knows_of_its_waiters` |
//! | the releaser dies before it wakes | the first in the queue looks once a second | `a_releaser_that_dies_before_it_wakes_is_noticed` |
//! | the head is dead, on this host | its port is closed, which the waker hears at once: it wakes the next | `a_dead_head_is_passed` |
//! | the head is dead, elsewhere | a waiter that sees the item free and others before it gives them 25 to 40 ms, and takes it | `a_head_that_died_elsewhere_is_noticed` |
//! | a wake-up is lost, or they all are | looks; after the first wake-up that was missed, they come more often | `lost_wake_ups_cost_time_and_nothing_else`, `without_wake_ups_a_short_wait_ends_soon_and_a_long_one_somewhat_later` |
//! | a client barges in before the waiter that was woken | the waiter joins again in front of all others | `a_woken_waiter_that_missed_is_the_next` |
//! | the waiter that was woken ahead is not the next any more | the release reads the queue, and wakes the next one as well | `the_waiter_that_is_next_by_now_is_woken_as_well`, `early_wake_ups_lose_no_waiter` |
//! | a releaser is slow to write, and the waiter that it woke has finished already | the waiter finds its entry there, and writes first; if others are before it, it wakes the one behind it too | `a_holder_whose_entry_is_still_there_wakes_the_one_behind_it_too` |
//! | two wake at once | entries are removed by id and by compare-and-swap: one of the two reads again. Where several can hold the target, the second one wakes another waiter | `two_releasers_at_once_lose_nobody`, `as_many_are_woken_as_there_is_room_for` |
//! | the queue is evicted or flushed | waiters that inspect it find that they are not in it, and join in front | `a_lost_queue_is_built_anew` |
//! | the queue is full, or garbage | newcomers poll until there is room; the next write drops what cannot be read | `a_queue_that_is_full_takes_no_more_until_there_is_room`, `a_queue_that_is_garbage_is_cleaned_by_the_next_write` |
//! | the limit passes while the wake-up arrives | a waiter that leaves inspects the target once more after it has left, and wakes the next | `a_wake_up_that_comes_too_late_is_passed_on` |
//! | the first waiter wants more than there is room for | no waiter behind it is woken, and newcomers join behind it | `a_waiter_for_many_is_not_overtaken_by_waiters_for_one` |

mod acquire;
mod driver;
pub mod entries;
mod interruption;
mod limit;
pub(crate) mod local;
pub mod policy;
mod poll;
pub(crate) mod queue;
mod wake;

pub(crate) use acquire::{Acquire, QueueReceipt};
pub(crate) use driver::{Start, run};
pub(crate) use interruption::Interruption;
pub use limit::{Cancel, Wait, Waited};
pub(crate) use poll::poll;
pub(crate) use wake::{Reserve, Waker};
