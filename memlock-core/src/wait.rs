//! Waiting: in a queue, woken by messages, and asking the server only where these fail.
//!
//! What is waited for is an item that its holder lets go of. Beside it is the queue, which is
//! advice: the item alone decides. A waiter is in one of these states:
//!
//! | a waiter | what is true | who may move it on |
//! | --- | --- | --- |
//! | has not joined | nobody knows of it | itself, by trying, or by joining and looking in one packet |
//! | in the queue | its line is in the item, and its listener is open under that line's id | whoever lets go, by waking it and taking its line off; itself, by a look that finds its turn come |
//! | woken | its line is off, or about to be; it owes the next one a wake-up until it has tried | itself: it takes what it waits for, or joins again in front |
//! | out | it got it, or gave up; no line of it is left, or it is remembered as left behind | itself, by taking its line off; whoever wakes it in vain, by waking the next |
//!
//! What can go wrong between them, and what then holds. Each row has its test in `tests/waiting`,
//! and the simulation walks through all of them:
//!
//! | race | why it does no harm | test |
//! | --- | --- | --- |
//! | let go of between our try and our joining (the lost wake-up) | the look is behind the line in one packet: either it sees the item gone, or whoever lets go later sees the line | `a_release_at_any_step_of_joining_is_not_missed` |
//! | the holder does not know that anybody waits | the waiter changes its record, so that its release is answered "changed" and it reads why | `a_lock_that_nobody_wants_costs_two_commands`, `a_holder_whose_grant_was_read_back_knows_of_its_waiters` |
//! | the releaser dies before it wakes | the first in the queue looks once a second | `a_releaser_that_dies_before_it_wakes_is_noticed` |
//! | the head is dead, on this host | its port is closed, which the waker hears at once: it wakes the next | `a_dead_head_is_passed` |
//! | the head is dead, elsewhere | whoever sees the item free and others before it waits 25 to 40 ms for them, and takes it | `a_head_that_died_elsewhere_is_noticed` |
//! | a wake-up is lost, or they all are | looks; after the first wake-up that was missed, they come more often | `lost_wake_ups_cost_time_and_nothing_else`, `without_wake_ups_a_short_wait_ends_soon_and_a_long_one_somewhat_later` |
//! | somebody barges in before the one that was woken | that joins again in front of all others | `a_woken_waiter_that_missed_is_the_next` |
//! | the one that was woken ahead is not the next any more | what the release reads of the queue says who is, and that one is woken as well | `whoever_is_next_by_now_is_woken_as_well`, `early_wake_ups_lose_no_waiter` |
//! | whoever woke is slow to write, and the one it woke is done already | that one finds its line there, and writes first; if others stand before it, it wakes the one behind it too | `a_holder_whose_entry_is_still_there_wakes_the_one_behind_it_too` |
//! | two wake at once | lines are taken off by id and by compare-and-swap: one of them reads anew. Where several can be let in, the second one wakes another | `two_releasers_at_once_lose_nobody`, `as_many_are_woken_as_there_is_room_for` |
//! | the queue is evicted or flushed | those who look find that they are not in it, and join in front | `a_lost_queue_is_built_anew` |
//! | the queue is full, or garbage | newcomers poll until there is room; whoever writes it drops what cannot be read | `a_queue_that_is_full_takes_no_more_until_there_is_room`, `a_queue_that_is_garbage_is_cleaned_by_whoever_writes_it` |
//! | the limit passes while the wake-up arrives | whoever leaves looks once more behind its leaving, and wakes the next | `a_wake_up_that_comes_too_late_is_passed_on` |
//! | the first one wants more than there is room for | nobody behind it is woken, and newcomers stand behind it | `a_waiter_for_many_is_not_overtaken_by_waiters_for_one` |

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
