//! `memlock resize`: another number of permits for a semaphore.

use std::os::unix::ffi::OsStrExt;

use memlock_core::lease::MIN_LEASE;

use crate::args::Resize;
use crate::connect::{Url, connect};
use crate::exit::{CliError, Status};
use crate::text::shown;

pub(crate) fn resize(url: &Url, args: &Resize) -> Result<Status, CliError> {
    let name = args.name.as_bytes();
    match connect(url)?.open_semaphore(name, MIN_LEASE)?.resize(args.permits)? {
        Some(_) => Ok(Status::OK),
        None => {
            Err(CliError::new(Status::NOT_FOUND, format!("There is no semaphore {}.", shown(name))))
        }
    }
}
