//! The judge of keeping: what a renewer may write, what its holder may believe by it, and what that
//! holder is told.
//!
//! | what happens | must be |
//! | --- | --- |
//! | a renewer writes a lock, or a line of a semaphore | a renewal: of its own, which was there, and which nobody has let go of |
//! | a renewal leaves | before the old lease is over by its holder's clock, and before `max_hold` is |
//! | its holder believes in it for longer | after a renewal on the server, and for no longer than the lease, counted from when that left |
//! | its holder is told of the danger | once for each time, with the time that is left, and before it is told of the loss |
//! | its holder is told of the loss | once, soon, for a reason that is true, and not if all went well |
//! | after that, and after a release | nothing is renewed, believed or told |
//!
//! That whoever believes to hold something has it on the server is checked as for any holder: see
//! `holds`.

mod beliefs;
mod lifecycle;
mod notices;
mod renewed_hold;
mod writes;

pub(super) use renewed_hold::Renewals;
