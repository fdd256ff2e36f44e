//! `memlock resize`: another number of permits for a semaphore.

use std::os::unix::ffi::OsStrExt;

use memlock_core::lease::MIN_LEASE;

use crate::args::Resize;
use crate::connect::{Url, connect, missing};
use crate::exit::{CliError, Status};
use crate::text::shown;

pub(crate) fn resize(url: &Url, args: &Resize) -> Result<Status, CliError> {
    let name = args.name.as_bytes();
    let client = connect(url)?;
    let semaphore = client.open_semaphore(name, MIN_LEASE)?;
    let none = format!("There is no semaphore {}.", shown(name));
    if let Some(missing) = missing(&client) {
        return Err(CliError::new(Status::NOT_FOUND, format!("{none} {missing}")));
    }
    match semaphore.resize(args.permits)? {
        Some(_) => Ok(Status::OK),
        None => Err(CliError::new(Status::NOT_FOUND, none)),
    }
}
