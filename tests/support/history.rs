//! The history of a client process: what its threads do, as they write it down.
//!
//! The clients of `make faults` in Rust, C and Python and those of the churn test write the same
//! format. [`check`](crate::check) decides from the histories of all processes whether memlock kept
//! its promises.
//!
//! A line is `<boot clock in ns> <thread> <event>`. A thread appends it to the file of its process
//! before it goes on. So a SIGKILL costs no more than the end of the last line, and a call that was
//! under way is known. A thread has one call under way at most; a call can lie within a critical
//! section.
//!
//! | event | meaning |
//! | --- | --- |
//! | `call lock NAME LEASE_MS WAIT_MS`, `extend NAME LEASE_MS 0`, `unlock NAME 0 0`, `setup SESSION 0 0`, `insert SESSION KEY 0` | a call is about to be made |
//! | `call acquire NAME LEASE_MS WAIT_MS PERMITS PRIORITY`, `prolong NAME LEASE_MS 0`, `release NAME 0 0` | the same, of a semaphore |
//! | `cancel CALL_NS` | another thread is about to cancel the wait of this thread that began at that moment. If that call has returned, the line means nothing |
//! | `done ANSWER FIRST SECOND SENTENCE` | the call has returned with this number of [`Answer`](memlock_core::Answer). FIRST and SECOND of a granted lock: its fence, and until when it is certainly held (boot clock in ns); of granted permits: their number, and the same; of an extension: 0, and the same; of an insert: the id, and 0. SENTENCE is that of an error |
//! | `enter`, `leave` | the critical section, as the program believes |
//!
//! A lease and a wait are whole milliseconds. A WAIT_MS of 0 is a single attempt, and `-` is a wait
//! without a limit.
//!
//! - [`Call`]: one call with its result.
//! - [`Reader`], [`Writer`]: from and to the file.
//! - [`Forged`]: made up.

pub use call::{Call, Done, Op, Span, Who, by_thread};
pub use forged::Forged;
pub use reader::Reader;
pub use writer::Writer;

mod call;
mod forged;
mod reader;
#[cfg(test)]
mod tests;
mod writer;
