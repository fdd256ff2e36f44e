//! Starting a program to which systemd's variables are to be addressed.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr;

use super::signals::own_pid;

/// The variables by which systemd names the process that is to use its sockets and its watchdog: see
/// sd_listen_fds(3) and sd_watchdog_enabled(3).
const ADDRESSED: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// The digits of a process id, and NUL.
const PLACE: usize = 11;

/// A program with its arguments and its environment, in which those variables that named our process
/// will name that of the program. The id of that process is known only after the fork, when nothing
/// may be allocated any more.
pub(super) struct Addressed {
    arguments: Vec<CString>,
    /// Each with NUL at its end.
    environment: Vec<Vec<u8>>,
    /// Where the process id is to be written.
    places: Vec<*mut u8>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
}

// SAFETY: the pointers lead to the buffers of the vectors, which belong to the value and do not move
// with it.
unsafe impl Send for Addressed {}
// SAFETY: as above. Only `exec` writes, in a process that has one thread.
unsafe impl Sync for Addressed {}

impl Addressed {
    /// What is to be executed instead of the command; `None` if no variable names our process.
    pub(super) fn of(command: &Command) -> io::Result<Option<Addressed>> {
        let ours = own_pid().to_string();
        let is_ours = |name: &&str| env::var(name).is_ok_and(|pid| pid == ours);
        let named: Vec<&str> = ADDRESSED.into_iter().filter(is_ours).collect();
        if named.is_empty() {
            return Ok(None);
        }
        let mut arguments = vec![CString::new(command.get_program().as_bytes())?];
        for argument in command.get_args() {
            arguments.push(CString::new(argument.as_bytes())?);
        }
        let (mut environment, mut places) = (Vec::new(), Vec::new());
        for (name, value) in &environment_of(command) {
            let is_named = named.iter().any(|named| name == named);
            let value = if is_named { &[0; PLACE] } else { value.as_bytes() };
            let mut entry = [name.as_bytes(), b"=", value, b"\0"].concat();
            if is_named {
                places.push(entry[name.len() + 1..].as_mut_ptr());
            }
            environment.push(entry);
        }
        let mut argv: Vec<*const c_char> = arguments.iter().map(|it| it.as_ptr()).collect();
        let mut envp: Vec<*const c_char> =
            environment.iter().map(|entry| entry.as_ptr().cast()).collect();
        argv.push(ptr::null());
        envp.push(ptr::null());
        Ok(Some(Addressed { arguments, environment, places, argv, envp }))
    }

    /// Becomes the program. Returns only if that fails.
    ///
    /// # Safety
    /// This is the only thread of the process, such as that of a child made by `fork`.
    pub(super) unsafe fn exec(&self) -> io::Error {
        let mut digits = [0_u8; PLACE];
        let mut left = own_pid().unsigned_abs();
        let mut length = 0;
        while left > 0 && length < PLACE - 1 {
            digits[length] = b'0' + (left % 10) as u8;
            (left, length) = (left / 10, length + 1);
        }
        digits[..length].reverse();
        for &place in &self.places {
            // SAFETY: there is room for so many bytes, which no other thread reads.
            unsafe { ptr::copy_nonoverlapping(digits.as_ptr(), place, PLACE) };
        }
        let Some(program) = self.arguments.first() else { return io::ErrorKind::NotFound.into() };
        debug_assert_eq!(self.envp.len(), self.environment.len() + 1);
        // SAFETY: both arrays end with NULL, and each text with NUL.
        unsafe { libc::execvpe(program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// The environment of the command: ours, with its changes.
fn environment_of(command: &Command) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
    for (name, value) in command.get_envs() {
        let name: &OsStr = name;
        match value {
            Some(value) => _ = environment.insert(name.to_owned(), value.to_owned()),
            None => _ = environment.remove(name),
        }
    }
    environment
}
