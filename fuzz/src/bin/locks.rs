#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memlock_fuzz::locks::run(data));
