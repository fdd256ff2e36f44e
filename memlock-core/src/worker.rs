//! Calls that do not block their callers: threads of the client carry them out.
//!
//! | file | contents |
//! | --- | --- |
//! | `drive` | the threads, and what they drive |
//! | `reading`, `ahead` | what a job is about to read; reading it for several of them at once |
//! | `pending` | a call in progress: a future, which may be cancelled |
//! | `completions` | which calls have ended, for an event loop that watches a descriptor |

mod ahead;
mod completions;
mod drive;
mod pending;
mod reading;

pub use completions::Completions;
#[cfg(all(test, shuttle))]
pub(crate) use drive::rouse_all;
pub(crate) use drive::{Job, Next, Turning, any};
pub use pending::Pending;
pub(crate) use pending::{Completer, Failed, call, discard, pending};
pub(crate) use reading::{ReadAhead, Reading};
