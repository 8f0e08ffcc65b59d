//! Every key that decides anything, escaped and given twice: read as the client's parsers read it (the last of two
//! equal keys, escapes for what they stand for), or not read at all.

use serde_json::Value;

use super::super::parse::{context, wire};

/// The JSON of `value` with what `change` makes of each key of an object, one object after the other.
fn spellings(value: &Value) -> Vec<String> {
    let mut all = Vec::new();
    variants(value, &mut |text| all.push(text));
    all
}

fn variants(value: &Value, each: &mut dyn FnMut(String)) {
    match value {
        Value::Object(fields) => {
            let plain = |key: &str, value: &Value| format!("{}: {value}", Value::from(key));
            let all: Vec<String> = fields.iter().map(|(key, value)| plain(key, value)).collect();
            for (at, (key, value)) in fields.iter().enumerate() {
                let mut put = |field: String| {
                    let mut all = all.clone();
                    all[at] = field;
                    each(format!("{{{}}}", all.join(", ")));
                };
                put(format!("{}: {value}", escaped(key)));
                for decoy in ["\"decoy\"", "7", "null", "{}", "[]", "true"] {
                    put(format!("{}: {decoy}, {}", Value::from(&**key), plain(key, value)));
                    put(format!("{}: {decoy}, {}: {value}", escaped(key), Value::from(&**key)));
                    put(format!("{}: {decoy}, {}: {value}", Value::from(&**key), escaped(key)));
                }
                if let Value::String(text) = value {
                    put(format!("{}: {}", Value::from(&**key), escaped(text)));
                }
                variants(value, &mut |value| put(format!("{}: {value}", Value::from(&**key))));
            }
        }
        Value::Array(list) => {
            for (at, element) in list.iter().enumerate() {
                variants(element, &mut |element| {
                    let mut all: Vec<String> = list.iter().map(Value::to_string).collect();
                    all[at] = element;
                    each(format!("[{}]", all.join(", ")));
                });
            }
        }
        _ => {}
    }
}

fn escaped(text: &str) -> String {
    let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
    format!("\"{}\"", units.collect::<String>())
}

/// How many spellings are read, of how many; none is read as anything else.
fn read_alike<T: PartialEq + std::fmt::Debug>(
    line: &str,
    read: impl Fn(&str) -> Option<T>,
) -> (usize, usize) {
    let expected = read(line).expect(line);
    let all = spellings(&serde_json::from_str(line).unwrap());
    let alike = all.iter().filter(|spelled| match read(spelled) {
        Some(found) => {
            assert_eq!(found, expected, "{spelled}");
            true
        }
        None => false,
    });
    (alike.count(), all.len())
}

#[test]
fn a_record_that_is_spelled_otherwise_is_the_same_record_or_damage() {
    let wires = [
        r#"{"type": "metadata", "protocol_version": "1.10"}"#,
        r#"{"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {"user_input": "/a:b c"}}}"#,
        r#"{"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {"user_input": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}]}}}"#,
        r#"{"timestamp": 1, "message": {"type": "SteerInput", "payload": {"user_input": "s"}}}"#,
        r#"{"timestamp": 1, "message": {"type": "StepBegin", "payload": {"n": 1}}}"#,
        r#"{"timestamp": 1, "message": {"type": "TurnEnd", "payload": {}}}"#,
        r#"{"timestamp": 1, "message": {"type": "CompactionEnd", "payload": {}}}"#,
        r#"{"timestamp": 1, "message": {"type": "ContentPart", "payload": {"type": "text", "text": "t"}}}"#,
        r#"{"timestamp": 1, "message": {"type": "ToolCall", "payload": {"id": "c", "function": {"name": "SendDMail", "arguments": "{\"checkpoint_id\": 3}"}}}}"#,
        r#"{"timestamp": 1, "message": {"type": "ToolResult", "payload": {"tool_call_id": "c", "return_value": {"is_error": true, "output": "o", "message": "m"}}}}"#,
    ];
    for line in wires {
        let (alike, all) = read_alike(line, |line| Some(wire(line.as_bytes()).ok()?.event()));
        assert!(alike * 10 >= all * 3, "{alike} of {all}: {line}");
    }
    let contexts = [
        r#"{"role": "_checkpoint", "id": 3}"#,
        r#"{"role": "_usage", "token_count": 3}"#,
        r#"{"role": "_system_prompt", "content": "p"}"#,
        r#"{"role": "user", "content": "x"}"#,
        r#"{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "think", "think": "y"}]}"#,
        r#"{"role": "assistant", "content": "x", "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}]}"#,
        r#"{"role": "tool", "content": "x", "tool_call_id": "c"}"#,
    ];
    for line in contexts {
        let (alike, all) = read_alike(line, |line| Some(context(line.as_bytes()).ok()?.record()));
        assert!(alike * 10 >= all * 3, "{alike} of {all}: {line}");
    }
}

#[test]
fn a_list_is_no_record_and_a_header_is_no_message() {
    for line in [r#"["user", "x", null, null, null, null]"#, r#"[]"#] {
        assert!(context(line.as_bytes()).is_err(), "{line}");
        assert!(wire(line.as_bytes()).is_err(), "{line}");
    }
    // One reader of the client takes these for a header, another for a turn.
    let turn = r#""timestamp": 1, "message": {"type": "TurnBegin", "payload": {"user_input": "x"}}"#;
    for header in [r#""protocol_version": "1.1""#, r#""type": "metadata", "protocol_version": 1"#] {
        assert!(wire(format!("{{{header}, {turn}}}").as_bytes()).is_err(), "{header}");
    }
    let turn = format!("{{\"type\": \"x\", \"protocol_version\": \"1.1\", {turn}}}");
    assert!(wire(turn.as_bytes()).is_ok());
}
