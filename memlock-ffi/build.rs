//! Sets the soname of the shared library, so that a program loads the ABI that it was linked
//! against.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Increment this number when the ABI changes, also in the Makefile.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmemlock.so.0");
}
