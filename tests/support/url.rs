//! URLs of stores.

/// The URL with these parameters, such as `pool=1&io_timeout=20s`, in place of those with the same
/// names.
pub fn with(url: &str, parameters: &str) -> String {
    let (place, before) = url.split_once('?').unwrap_or((url, ""));
    let name = |parameter: &str| parameter.split('=').next().map(str::to_owned);
    let stays = |old: &&str| parameters.split('&').all(|new| name(new) != name(old));
    let all = before.split('&').filter(stays).chain(parameters.split('&'));
    let query: Vec<&str> = all.filter(|parameter| !parameter.is_empty()).collect();
    if query.is_empty() { place.to_owned() } else { format!("{place}?{}", query.join("&")) }
}

/// The URL of a client that waits for a busy machine, unless this one says how long to wait.
pub fn patient(url: &str) -> String {
    if url.contains("io_timeout=") {
        return url.to_owned();
    }
    with(url, "connect_timeout=20s&io_timeout=20s")
}
