//! What `data:` URLs hold, told without decoding them.

/// Media type (empty where the URL names none) and decoded size in bytes; `None` for another URL.
pub(super) fn parse(url: &str) -> Option<(&str, u64)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    Some(match head.strip_suffix(";base64") {
        Some(media_type) => (media_type, base64_len(data)),
        None => (head, data.len() as u64),
    })
}

/// The base64 text of what a `data:` URL holds; empty for another URL.
pub(super) fn base64_in(url: &str) -> &str {
    let held = url.strip_prefix("data:").and_then(|url| url.split_once(','));
    held.filter(|(head, _)| head.ends_with(";base64")).map_or("", |(_, data)| data)
}

/// How many bytes a base64 text stands for.
pub(super) fn base64_len(data: &str) -> u64 {
    data.trim_end_matches('=').len() as u64 * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_url_tells_type_and_decoded_size() {
        for (url, held) in [
            ("data:image/png;base64,QUJD", Some(("image/png", 3))),
            ("data:image/png;base64,QUI=", Some(("image/png", 2))),
            ("data:,abcd", Some(("", 4))),
            ("https://example.com/x.png", None),
        ] {
            assert_eq!(parse(url), held, "{url}");
        }
        for (url, text) in
            [("data:image/png;base64,QUI=", "QUI="), ("data:,abcd", ""), ("https://example.com/x.png", "")]
        {
            assert_eq!(base64_in(url), text, "{url}");
        }
        for (data, bytes) in [("", 0), ("QQ==", 1), ("QUI=", 2), ("QUJD", 3), ("QUJDRA==", 4)] {
            assert_eq!(base64_len(data), bytes, "{data}");
        }
    }
}
