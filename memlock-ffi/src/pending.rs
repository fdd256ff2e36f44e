//! Calls that are started: a thread of the client carries them out, and an event loop is told
//! which have ended.
//!
//! | a pending call | what is true | what may change it |
//! | --- | --- | --- |
//! | in progress | a thread of the client carries it out | its end; a cancellation brings it about |
//! | ended | its answer is known, and what it was granted is there | handing out; taking; closing |
//! | taken | what it was granted is the caller's | closing |
//! | closed | the handle is freed | nothing |
//!
//! The descriptor of the client is readable while a call has ended and was not handed out. Closing an
//! acquisition cancels it if it is in progress; what it was granted and was not taken is then released
//! by a thread of the client. A release is carried out in any case.
//!
//! A child made by `fork` has none of its parent's calls: it may close its copies of the handles,
//! without an effect on the calls.

mod call;
mod event_loop;
mod start;

pub use call::*;
pub use event_loop::*;
pub use start::*;
