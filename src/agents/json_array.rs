//! A JSON array of objects that is changed element by element: every other byte of it stays as it is.

use std::ops::Range;

use serde_json::value::RawValue;

/// Where the elements of `array` stand in it.
///
/// # Errors
/// Why it is no array.
pub(super) fn spans(array: &str) -> Result<Vec<Range<usize>>, serde_json::Error> {
    let elements: Vec<&RawValue> = serde_json::from_str(array)?;
    let span = |element: &RawValue| {
        // Each raw value is a part of `array`.
        let start = element.get().as_ptr() as usize - array.as_ptr() as usize;
        start..start + element.get().len()
    };
    Ok(elements.into_iter().map(span).collect())
}

/// The array without the element `remove`, then with another one `insert`ed at its place.
pub(super) fn splice(
    array: &str,
    spans: &[Range<usize>],
    remove: Option<usize>,
    insert: Option<(usize, &str)>,
    indent: &str,
) -> String {
    let mut texts: Vec<&str> = spans.iter().map(|span| &array[span.clone()]).collect();
    // What stands between the elements stays where it is, so that one that goes away and comes back leaves no
    // trace.
    let between: Vec<&str> = spans.windows(2).map(|pair| &array[pair[0].end..pair[1].start]).collect();
    let (open, close) = (format!("[\n{indent}"), format!("\n{}]", &indent[..indent.len().saturating_sub(2)]));
    let open = spans.first().map_or(open.as_str(), |first| &array[..first.start]);
    let close = spans.last().map_or(close.as_str(), |last| &array[last.end..]);
    if let Some(at) = remove {
        texts.remove(at);
    }
    if let Some((at, text)) = insert {
        texts.insert(at.min(texts.len()), text);
    }
    if texts.is_empty() {
        return "[]".to_owned();
    }
    let usual = format!(",\n{indent}");
    let mut new = open.to_owned();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            new.push_str(between.get(at - 1).copied().unwrap_or(&usual));
        }
        new.push_str(text);
    }
    new.push_str(close);
    new
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_the_element_that_is_meant_changes() {
        for (array, remove, insert, expected) in [
            ("[ 1 , 2,3 ]", None, Some((9, "4")), "[ 1 , 2,3,\n  4 ]"),
            ("[ 1 , 2,3 ]", Some(1), None, "[ 1 , 3 ]"),
            ("[ 1 , 2,3 ]", Some(0), Some((2, "x")), "[ 2 , 3,x ]"),
            ("[1]", Some(0), None, "[]"),
            ("[]", None, Some((0, "1")), "[\n  1\n]"),
            ("[]", None, None, "[]"),
        ] {
            let spans = spans(array).unwrap();
            assert_eq!(splice(array, &spans, remove, insert, "  "), expected, "{array}");
        }
    }
}
