//! The URL that the environment names: `MEMLOCK_URL`, or the first line of the file that
//! `MEMLOCK_URL_FILE` names, so that a password need not be in the environment.

use std::env::{self, VarError};
use std::io::Read;

use crate::error::{Error, Result};

/// The variable with the URL.
pub const URL: &str = "MEMLOCK_URL";
/// The variable with the path of a file that contains the URL.
pub const URL_FILE: &str = "MEMLOCK_URL_FILE";

/// The most bytes that are read of the file.
const LARGEST: u64 = 64 * 1024;

/// The URL, and the variable that it comes from; `None` if neither is set. `MEMLOCK_URL` is used if
/// both are.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if a variable is not UTF-8, or the file cannot be
/// read or is empty. The content of the file is not in the message.
pub fn url() -> Result<Option<(String, &'static str)>> {
    match variable(URL)? {
        Some(url) => Ok(Some((url, URL))),
        None => Ok(url_of_file()?.map(|url| (url, URL_FILE))),
    }
}

/// The URL in the file that `MEMLOCK_URL_FILE` names, if it is set.
///
/// # Errors
/// As for [`url`].
pub fn url_of_file() -> Result<Option<String>> {
    let Some(path) = variable(URL_FILE)? else { return Ok(None) };
    let file = shown_path(&path);
    let unusable = |why: String| Error::config(format!("The file{file} of {URL_FILE} {why}."));
    let mut bytes = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(LARGEST).read_to_end(&mut bytes))
        .map_err(|error| unusable(format!("cannot be read: {error}")))?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    match String::from_utf8(line.to_vec()) {
        Ok(url) if !url.is_empty() => Ok(Some(url)),
        _ => Err(unusable("has no URL in its first line".to_owned())),
    }
}

/// The path in messages, if it is absolute. Another text may be a secret in the place of the file
/// that contains it.
pub(crate) fn shown_path(path: &str) -> String {
    if path.starts_with('/') { format!(" {path:?}") } else { String::new() }
}

fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Error::config(format!("The environment variable {name} is not valid UTF-8.")))
        }
    }
}
