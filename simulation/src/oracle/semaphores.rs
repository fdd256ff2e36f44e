//! The judge of semaphores: what the server's record of one may become, by whom, and when.
//!
//! | what is written | must be |
//! | --- | --- |
//! | a new line | by who asked for so many permits; all lines together are no more than there are permits |
//! | a line's end | moved by its owner only, no further than [`AFTER_THE_LEASE`] allows |
//! | no line any more | its owner's doing, unless the server's clock has passed its end |
//! | the number of permits | the doing of somebody who was told to, and of nobody's line |
//! | no record any more | the doing of somebody who was told to, once for each time |
//!
//! What callers are told stands in `semaphores/calls`, and who is to come next in
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
