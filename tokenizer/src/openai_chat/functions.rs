//! Function definitions as the models see them: JSON schema written as a TypeScript namespace. Schema features that
//! have no known rendering are written as close to TypeScript as they allow.

use serde_json::Value;

pub(super) fn definitions(functions: &[&Value]) -> String {
    let mut out = String::from("namespace functions {\n\n");
    for function in functions {
        comment(&mut out, 0, function);
        let name = function["name"].as_str().unwrap_or_default();
        let parameters = &function["parameters"];
        if parameters["properties"].as_object().is_none_or(serde_json::Map::is_empty) {
            out.push_str(&format!("type {name} = () => any;\n\n"));
        } else {
            out.push_str(&format!("type {name} = (_: {{\n"));
            properties(&mut out, 0, parameters);
            out.push_str("\n}) => any;\n\n");
        }
    }
    out.push_str("} // namespace functions");
    out
}

fn comment(out: &mut String, indent: usize, described: &Value) {
    if let Some(text) = described["description"].as_str().filter(|text| !text.is_empty()) {
        out.push_str(&format!("{:indent$}// {text}\n", ""));
    }
}

/// One property a line, without a newline after the last.
fn properties(out: &mut String, indent: usize, object: &Value) {
    let required = |name: &str| object["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    for (index, (name, schema)) in object["properties"].as_object().into_iter().flatten().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        comment(out, indent, schema);
        let optional = if required(name) { "" } else { "?" };
        out.push_str(&format!("{:indent$}{name}{optional}: {},", "", type_of(schema, indent)));
    }
}

fn type_of(schema: &Value, indent: usize) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return union(values.iter().map(literal));
    }
    if let Some(value) = schema.get("const") {
        return literal(value);
    }
    match &schema["type"] {
        Value::String(name) => named_type(name, schema, indent),
        Value::Array(names) => {
            union(names.iter().filter_map(Value::as_str).map(|name| named_type(name, schema, indent)))
        }
        _ => match ["anyOf", "oneOf"].iter().find_map(|key| schema[*key].as_array()) {
            Some(choices) => union(choices.iter().map(|choice| type_of(choice, indent))),
            None if schema["properties"].is_object() => named_type("object", schema, indent),
            None => "any".to_owned(),
        },
    }
}

fn named_type(name: &str, schema: &Value, indent: usize) -> String {
    match name {
        "string" | "boolean" | "null" => name.to_owned(),
        "number" | "integer" => "number".to_owned(),
        "array" if schema["items"].is_object() => format!("{}[]", type_of(&schema["items"], indent)),
        "array" => "any[]".to_owned(),
        "object" => {
            let mut out = String::from("{\n");
            properties(&mut out, indent + 2, schema);
            out.push_str("\n}");
            out
        }
        _ => "any".to_owned(),
    }
}

fn union(types: impl Iterator<Item = String>) -> String {
    types.collect::<Vec<_>>().join(" | ")
}

fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_become_typescript() {
        let function = json!({
            "name": "order", "description": "Orders",
            "parameters": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "integer", "description": "number of it"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "size": {"type": "string", "enum": ["s", "m"]},
                "to": {"type": "object", "properties": {"zip": {"type": ["string", "null"]}}},
                "any": {}, "one": {"anyOf": [{"type": "null"}, {"const": 3}]}
            }}
        });
        let empty = json!({"name": "ping"});
        let expect = "namespace functions {\n\n// Orders\ntype order = (_: {\n// number of it\nid: number,\n\
                      tags?: string[],\nsize?: \"s\" | \"m\",\nto?: {\n  zip?: string | null,\n},\nany?: any,\n\
                      one?: null | 3,\n}) => any;\n\ntype ping = () => any;\n\n} // namespace functions";
        assert_eq!(definitions(&[&function, &empty]), expect);
    }

    #[test]
    fn malformed_definitions_are_no_panic() {
        for odd in
            [json!(null), json!([]), json!({"name": 1, "parameters": {"properties": {"a": 1, "b": {"type": {}}}}})]
        {
            assert!(definitions(&[&odd]).ends_with("} // namespace functions"));
        }
    }
}
