//! Renewals: what a renewer may write, until when a holder may rely on it, and the holder's
//! notifications.
//!
//! | event | must be |
//! | --- | --- |
//! | a renewer writes a lock, or a line of a semaphore | a renewal of its own lock, which was there and has not been released |
//! | a renewal is sent | before the old lease ends by its holder's clock, and before `max_hold` |
//! | its holder relies on it for longer | after a renewal on the server, for no longer than the lease, counted from when the renewal was sent |
//! | its holder is notified that it is at risk | once each time, with the remaining time, and before the loss |
//! | its holder is notified of the loss | once, soon, with the true reason, and not in a run without faults |
//! | after that, and after a release | nothing is renewed, relied on or reported |
//!
//! That the server has what a holder relies on is checked as for any hold: see `holds`.

mod lifecycle;
mod notices;
mod reliance;
mod renewed_hold;
mod writes;

pub(super) use renewed_hold::Renewals;
