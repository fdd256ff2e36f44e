//! Through the C++ header, in `driver.cpp`, with the shared library that was built with this test,
//! and under the address and undefined-behaviour sanitizers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::Driver;

/// Starts one. It is compiled unless it was since this test was.
pub(super) fn start() -> Driver {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(compile);
    Driver::start(Command::new(program), "the C++ driver did not start")
}

/// Compiles the driver into a folder beside this test. Another run may do the same at the same
/// time, so each file is made under a name of its own and then takes its place.
fn compile() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let built = test.parent().expect("it is in a folder");
    let program = built.join("doors/driver-cpp");
    if is_newer(&program, &test) {
        return program;
    }
    let library = built.join("libmemlock.so");
    assert!(library.exists(), "{} was not built with this test", library.display());
    let folder = built.join("doors");
    fs::create_dir_all(&folder).expect("the build's folder is ours");
    let replace = |name: &str, make: &dyn Fn(&Path)| {
        let fresh = folder.join(format!("{name}.{}", std::process::id()));
        make(&fresh);
        fs::rename(&fresh, folder.join(name)).expect("the build's folder is ours");
    };
    // A program asks for it by its soname, for which cargo makes no link.
    for name in ["libmemlock.so.0", "libmemlock.so"] {
        replace(name, &|link| symlink(&library, link).expect("the build's folder is ours"));
    }
    replace("driver-cpp", &|program| build(&folder, program));
    program
}

/// Whether a program was made after its sources, and after the test that says how.
fn is_newer(program: &Path, test: &Path) -> bool {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let include = tests.with_file_name("include");
    let [driver, objects] =
        ["driver.cpp", "objects.hpp"].map(|name| tests.join("doors").join(name));
    let sources = [driver, objects, include.join("memlock.h"), include.join("memlock.hpp")];
    let made = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
    let program = made(program);
    program.is_some() && sources.iter().chain([&test.to_owned()]).all(|it| made(it) < program)
}

fn build(folder: &Path, program: &Path) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    command.args(["-std=c++17", "-O0", "-g", "-pthread", "-fsanitize=address,undefined"]);
    command.args(["-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow"]);
    command.args(["-Werror", "-I"]).arg(tests.with_file_name("include"));
    command.arg(tests.join("doors/driver.cpp")).arg("-o").arg(program);
    command.arg("-L").arg(folder).arg("-lmemlock");
    command.arg(format!("-Wl,-rpath,{}", folder.display()));
    let ran = command.output().unwrap_or_else(|why| panic!("{command:?} did not run: {why}"));
    assert!(ran.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&ran.stderr));
}
