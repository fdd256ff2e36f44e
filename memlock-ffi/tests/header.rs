//! The C header is what the sources of the C library say.

use std::path::Path;

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/memlock.h");

/// With MEMLOCK_WRITE_HEADER it is written anew: `make header`.
#[test]
fn the_header_is_up_to_date() {
    let bindings = cbindgen::generate(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = with_comments_of_c89(&String::from_utf8(generated).unwrap());
    if std::env::var_os("MEMLOCK_WRITE_HEADER").is_some() {
        std::fs::write(HEADER, &generated).unwrap();
    }
    let is_up_to_date = std::fs::read_to_string(HEADER).unwrap() == generated;
    assert!(is_up_to_date, "include/memlock.h is not what memlock-ffi/src says: `make header`");
}

/// cbindgen writes `//` behind `#endif` and `}`, which C89 has not.
fn with_comments_of_c89(generated: &str) -> String {
    let line = |line: &str| match line.split_once(" // ") {
        Some((code, comment)) if !code.trim_start().starts_with('*') => {
            format!("{} /* {comment} */\n", code.trim_end())
        }
        _ => format!("{line}\n"),
    };
    generated.lines().map(line).collect()
}
