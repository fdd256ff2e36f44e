//! The command `memlock`: see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    look_up_without_libraries();
    memlock_cli::main()
}

/// Has hosts and users looked up by what is a part of this file, whatever `/etc/nsswitch.conf` says.
/// A library of this host that is named there would bring another libc into the process, which then
/// crashes.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
fn look_up_without_libraries() {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const std::ffi::c_char,
            sources: *const std::ffi::c_char,
        ) -> std::ffi::c_int;
    }
    for (database, sources) in [(c"hosts", c"files dns"), (c"passwd", c"files")] {
        // SAFETY: both are texts that end with a NUL, and no other thread runs yet.
        unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
    }
}
