//! URLs of stores.

/// The URL with further parameters, such as `pool=1&io_timeout=20s`.
pub fn with(url: &str, parameters: &str) -> String {
    format!("{url}{}{parameters}", if url.contains('?') { '&' } else { '?' })
}

/// The URL of a client that waits for a busy machine.
pub fn patient(url: &str) -> String {
    with(url, "connect_timeout=20s&io_timeout=20s")
}
