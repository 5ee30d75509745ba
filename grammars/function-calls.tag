{
  "type": "structural_tag",
  "format": {
    "type": "triggered_tags",
    "triggers": ["<call:"],
    "tags": [
      {
        "type": "tag",
        "begin": "<call:weather>",
        "content": {
          "type": "json_schema",
          "json_schema": {
            "type": "object",
            "properties": {
              "city": {"type": "string", "minLength": 1, "maxLength": 80},
              "days": {"type": "integer", "minimum": 1, "maximum": 14}
            },
            "required": ["city"],
            "additionalProperties": false
          }
        },
        "end": "</call>"
      },
      {
        "type": "tag",
        "begin": "<call:calculate>",
        "content": {"type": "regex", "pattern": "[0-9+*/(). -]{1,120}"},
        "end": "</call>"
      }
    ]
  }
}
