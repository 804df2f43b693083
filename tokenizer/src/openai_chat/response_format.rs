//! A schema that the answer must follow, as OpenAI's published prompt format (Harmony) writes it into the prompt. The
//! hosted models' own spelling is not published, so this part of a count is an estimate.

use serde_json::Value;

/// `None` for formats that write nothing.
pub(super) fn written(format: &Value) -> Option<String> {
    let format = format.get("json_schema").filter(|_| format["type"] == "json_schema")?;
    let schema = format.get("schema").filter(|schema| schema.is_object())?;
    let name = format["name"].as_str().unwrap_or("schema");
    let description = match format["description"].as_str().filter(|text| !text.is_empty()) {
        Some(text) => format!("// {text}\n"),
        None => String::new(),
    };
    Some(format!("\n\n# Response Formats\n\n## {name}\n\n{description}{schema}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_written_out_and_nothing_else() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": schema}});
        let expect = "\n\n# Response Formats\n\n## n\n\n// d\n{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}";
        assert_eq!(written(&format).as_deref(), Some(expect));
        for odd in [
            json!({"type": "json_object"}),
            json!({"type": "text"}),
            json!({"type": "json_schema"}),
            json!({"type": "json_schema", "json_schema": {"schema": 1}}),
            json!({"type": "json_object", "json_schema": {"schema": {}}}),
            json!(null),
            json!("json_schema"),
        ] {
            assert_eq!(written(&odd), None, "{odd}");
        }
    }
}
