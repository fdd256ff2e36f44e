//! The oracle: what must be true of every run, whatever faults occur in it.
//!
//! It sees what the server does and the answers that clients get; it never looks into the library.

mod acquiring;
mod call;
mod changes;
mod end;
mod fairness;
mod faults;
mod hold;
mod holds;
mod limits;
mod lists;
mod lock;
mod quorum;
mod renewal;
mod renewers;
mod requester;
mod semaphores;
mod state;
mod tally;
mod token;
mod waits;

pub(crate) use call::Refusal;
pub(crate) use requester::Requester;
pub(crate) use semaphores::PermitRequest;
pub(crate) use state::Oracle;
pub(crate) use tally::Tally;
