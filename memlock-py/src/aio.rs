//! What `memlock.aio` is made of: calls that do not block the event loop, and what they acquire.
//!
//! | file | contents |
//! | --- | --- |
//! | `call` | a call in progress |
//! | `completions` | the descriptor that tells an event loop which calls have ended |
//! | `held` | a lock or permits that such a call has acquired |
//! | `acquire` | starting acquisitions |
//! | `in_hub` | waits of threads and, by such calls, of greenlets, which are not of `memlock.aio` |

mod acquire;
mod call;
mod completions;
mod held;
mod in_hub;

use pyo3::prelude::*;

pub(crate) use acquire::{Wanted, acquire};
pub(crate) use call::{Call, call_sync};
pub(crate) use in_hub::{Waiting, wait_in};

/// Adds the classes.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<completions::Completions>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<held::Held>()
}
