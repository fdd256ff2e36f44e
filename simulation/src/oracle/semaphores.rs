//! Semaphores: how a server's record may change, by which process, and when.
//!
//! | write | must be |
//! | --- | --- |
//! | a new line | by a process with a call for that number of permits; all lines together hold no more than there are permits |
//! | a line's end moves | by its owner only, no further than [`timing::AFTER_THE_LEASE`] allows |
//! | a line is removed | by its owner, unless the server's clock has passed its end |
//! | the number of permits changes | by a process that is to resize it, or has a handle that resizes, and without changing a line |
//! | the record is deleted | by a task that is to tear it down, once for each time |
//!
//! The answers of callers are checked in `semaphores/calls`, and the order of waiters in
//! `semaphores/queue`; what holders may rely on is the same as for mutexes, see `holds`.

mod call;
mod calls;
mod changes;
mod position;
mod queue;
mod record;
mod state;
mod text;
mod timing;

pub(crate) use call::PermitRequest;
pub(super) use state::Semaphores;
pub(super) use text::Line;
