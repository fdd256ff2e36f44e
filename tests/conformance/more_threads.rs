//! These tests wait far more than they work: for leases to end, for servers and for drivers. So
//! more of them run at a time than there are processors, unless `RUST_TEST_THREADS` says otherwise.
#![allow(unsafe_code)]

/// Called before `main`, where the test harness reads the variable and no other thread does.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = set;

extern "C" fn set() {
    // SAFETY: both strings end with NUL, and there is no other thread yet.
    unsafe { libc::setenv(c"RUST_TEST_THREADS".as_ptr(), c"12".as_ptr(), 0) };
}
