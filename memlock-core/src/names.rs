//! Names as callers give them.

use crate::error::{Error, Result};
use crate::name::check_name;
use crate::store::has_secret_url;

/// Checks the name of a lock, a semaphore or a list.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for [`check_name`] and [`check_for_secrets`].
pub(crate) fn check(name: &[u8]) -> Result<()> {
    check_name(name)?;
    check_for_secrets(name)
}

/// Names are stored, listed and shown in messages: the URL of a store that may have a password in it is
/// refused, and not shown.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for such a name.
pub(crate) fn check_for_secrets(name: &[u8]) -> Result<()> {
    if has_secret_url(&String::from_utf8_lossy(name)) {
        return Err(Error::invalid(
            "The name has the URL of a store in it, which may have a password in it and is not shown: give \
             the URL to the client (connect, --url or MEMLOCK_URL), and choose another name.",
        ));
    }
    Ok(())
}
