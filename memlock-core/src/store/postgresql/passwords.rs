//! The password file of PostgreSQL's own programs, and the name of this process's user.

use std::ffi::CStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::environment::shown_path;
use crate::store::remote::Place;
use crate::store::url::Secret;

/// A larger file is not read.
const LARGEST: u64 = 1024 * 1024;

/// The password for this server in the file that `PGPASSFILE` names, or in `~/.pgpass`.
pub(super) fn of_file(place: &Place, database: &str, user: &str) -> Option<Secret> {
    let path = match std::env::var_os("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"),
    };
    let about = path.metadata().ok().filter(|about| about.is_file() && about.len() <= LARGEST)?;
    // As PostgreSQL's own programs do.
    if about.permissions().mode() & 0o077 != 0 {
        log::warn!(
            "The password file{} is readable by others, and not used: set its mode to 0600.",
            shown_path(&path.to_string_lossy())
        );
        return None;
    }
    let text = std::fs::read_to_string(&path).ok()?;
    let (hosts, port) = match place {
        Place::Tcp(host, port) => (vec![host.clone()], port.to_string()),
        Place::Unix(socket) => {
            let directory = socket.parent().map(|path| path.display().to_string());
            let port = socket.extension().unwrap_or_default().to_string_lossy().into_owned();
            (directory.into_iter().chain(["localhost".to_owned()]).collect(), port)
        }
    };
    hosts.iter().find_map(|host| find(&text, [host, &port, database, user]))
}

/// The password in the first line whose other fields match.
fn find(text: &str, wanted: [&str; 4]) -> Option<Secret> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (keys, password) = fields.split_at_checked(4)?;
        let matches = keys.iter().zip(wanted).all(|(key, wanted)| key == "*" || key == wanted);
        let password = password.first().filter(|password| !password.is_empty())?;
        matches.then(|| Secret(password.clone()))
    })
}

/// The fields of a line, between colons; a backslash stands before a colon or a backslash that
/// belongs to a field.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let letter = match letter {
            ':' => {
                fields.push(String::new());
                continue;
            }
            '\\' => letters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(field) = fields.last_mut() {
            field.push(letter);
        }
    }
    fields
}

/// The name of the user that this process runs as.
pub(super) fn own_user() -> Option<String> {
    let mut buffer = vec![0; 16 * 1024];
    // SAFETY: all-zero is a valid passwd, which is only written to.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the entry, the buffer of this length and the result outlive the call.
    let failed = unsafe {
        libc::getpwuid_r(
            libc::geteuid(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    if failed != 0 || found.is_null() || entry.pw_name.is_null() {
        return None;
    }
    // SAFETY: the name ends with NUL, in the buffer.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    name.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = "# h:1:d:u:no\nh:1:d:x:no\nh:*:d:u:a\\:b\\\\c\n*:*:*:*:other\nbad\n";
        let find = |wanted| find(text, wanted).map(|secret| secret.0);
        assert_eq!(find(["h", "1", "d", "u"]).as_deref(), Some("a:b\\c"));
        assert_eq!(find(["i", "1", "d", "u"]).as_deref(), Some("other"));
        assert_eq!(super::find("h:1:d", ["h", "1", "d", "u"]).map(|secret| secret.0), None);
    }

    #[test]
    fn this_process_has_a_user() {
        assert!(own_user().is_some_and(|name| !name.is_empty()));
    }
}
